"""Changes of parameters, buffers and inputs that a program cannot repeat: refused by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from placewright.capture.containers import leaves_of
from placewright.capture.draft import input_name
from placewright.capture.feed import as_arguments
from placewright.capture.named_state import Loss, named_state
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


def check_memory(
    changed: Collection[str], model: nn.Module, loss_fn: Loss | None, inputs: Any, targets: Any
) -> None:
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
    parameters, buffers = named_state(model, loss_fn)
    arguments = as_arguments(inputs, type(model).__name__)
    groups: dict[str, Iterable[tuple[str, Any]]] = {
        "parameter": [(member.key, member.value) for member in parameters],
        "buffer": [(member.key, member.value) for member in buffers],
        "input": leaves_of(arguments),
        "target": leaves_of(targets),
    }
    held = [
        (input_name(role, key), value)
        for role, group in groups.items()
        for key, value in group
        if isinstance(value, Tensor)
    ]
    for one, other in _overlapping(held):
        if one in changed or other in changed:
            raise UnsupportedError(
                f"{one!r} and {other!r} share memory, and a step changes both at once",
                where=f"model {type(model).__name__}",
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
