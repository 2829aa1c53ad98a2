"""What training changes of a parameter beside its value, and cannot be kept: refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import Tensor, nn

from placewright.capture.named_state import Loss, Member, named_state
from placewright.errors import UnsupportedError

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def check_parameters(model: nn.Module, loss_fn: Loss | None) -> None:
    """Look at all that is trained.

    Raises
    ------
    UnsupportedError
        A hook on a parameter would not be called; or an update would have to show in another
        parameter or buffer, which shares memory with it.
    """
    parameters, buffers = named_state(model, loss_fn)
    trained = [member for member in parameters if member.value.requires_grad]
    for member in trained:
        if any(getattr(member.value, hooks, None) for hooks in _HOOKS):
            raise UnsupportedError(
                "a hook on a parameter, which a captured step would not call",
                where=f"model {type(model).__name__}, parameter {member.key!r}",
                hint="remove the hook, or do what it does in forward",
            )
    keys = {member.key for member in trained}
    for one, other in _overlapping([*parameters, *buffers]):
        if keys & {one.key, other.key}:
            raise UnsupportedError(
                f"{one.key!r} and {other.key!r} share memory, and training changes both at once",
                where=f"model {type(model).__name__}",
                hint="make one of them a copy, or give one tensor both names",
            )


def _overlapping(members: Sequence[Member]) -> Iterator[tuple[Member, Member]]:
    """Neighbours in memory whose elements lie among each other."""
    held = [(*_extent(member.value), k) for k, member in enumerate(members)]
    for (memory, _, end, k), (other, start, _, j) in pairwise(sorted(held)):
        if memory == other and start < end:
            yield members[k], members[j]


def _extent(value: Tensor) -> tuple[int, int, int]:
    """Which memory, and the first element in it and the one after the last."""
    memory: int = value.untyped_storage()._cdata
    pairs = zip(value.shape, value.stride(), strict=True)
    span = int(sum((n - 1) * s for n, s in pairs)) + 1
    first = int(value.storage_offset())
    return memory, first, first + (span if value.numel() else 0)
