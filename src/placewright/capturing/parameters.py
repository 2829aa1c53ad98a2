"""Changes of parameters, buffers and inputs that a program cannot repeat: refused by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor, nn

from placewright.capturing.draft import input_name
from placewright.capturing.named_state import Loss, named_state
from placewright.capturing.source import ModelSource
from placewright.capturing.state import named_values
from placewright.errors import UnsupportedError

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def check_parameters(model: nn.Module, loss_fn: Loss | None) -> None:
    """Refuse hooks on parameters that are trained: they would not be called.

    Raises
    ------
    UnsupportedError
        Names the parameter.
    """
    parameters, _ = named_state(model, loss_fn)
    trained = [member for member in parameters if member.value.requires_grad]
    for member in trained:
        if any(getattr(member.value, hooks, None) for hooks in _HOOKS):
            raise UnsupportedError(
                "a hook on a parameter, which a captured step would not call",
                where=f"model {type(model).__name__}, parameter {member.key!r}",
                hint="remove the hook, or do what it does in forward",
            )


def check_memory(changed: Collection[str], source: ModelSource) -> None:
    """Refuse a change that would have to show in another tensor, which shares its memory.

    Parameters
    ----------
    changed
        Program inputs that a step changes in place.

    Raises
    ------
    UnsupportedError
        Names both tensors.
    """
    held = [
        (input_name(role, key), value)
        for (role, key), value in named_values(source).items()
        if isinstance(value, Tensor)
    ]
    for one, other in _overlapping(held):
        if one in changed or other in changed:
            raise UnsupportedError(
                f"{one!r} and {other!r} share memory, and a step changes both at once",
                where=f"model {type(source.model).__name__}",
                hint="make one of them a copy (clone), or give one tensor both names",
            )


def _overlapping(held: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """Names of tensors whose elements lie among each other in memory."""
    extents = sorted((*_extent(value), name) for name, value in held if value.numel())
    for k, (memory, _, end, name) in enumerate(extents):
        for other, start, _, behind in extents[k + 1 :]:
            if other != memory or start >= end:
                break
            yield name, behind


def _extent(value: Tensor) -> tuple[int, int, int]:
    """Which memory, and the first element in it and the one after the last."""
    memory: int = value.untyped_storage()._cdata
    pairs = zip(value.shape, value.stride(), strict=True)
    span = int(sum((n - 1) * s for n, s in pairs)) + 1
    first = int(value.storage_offset())
    return memory, first, first + span
