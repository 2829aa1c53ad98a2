"""Buffers that a forward pass replaces: ``self.mean = ...``, where others write ``copy_``.

To a trace a new tensor under an old name is nothing that has happened. What the next step starts
from is written back into the buffer, after everything that still reads its old value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from placewright.errors import UnsupportedError

Rebound: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""The buffers that were replaced, each with what took its place."""


def rebound(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Rebound:
    """Which of the tensors are others now.

    Raises
    ------
    UnsupportedError
        A buffer changed its shape or dtype: the next step would be another graph.
    """
    changed = {key: (old, after[key]) for key, old in before.items() if after[key] is not old}
    for key, (old, new) in changed.items():
        _check_alike(key.removeprefix("model."), old, new)
    return tuple(changed.values())


def write_back(replaced: Rebound) -> None:
    """Write the new values into the buffers; all are read before one is written (swaps)."""
    with torch.no_grad():
        values = [new.detach().clone() for _, new in replaced]
        for (old, _), value in zip(replaced, values, strict=True):
            old.copy_(value)


def apart(outputs: Sequence[Tensor], replaced: Rebound) -> list[Tensor]:
    """The outputs; one that is a buffer about to be overwritten, as a copy."""
    olds = {_storage(old) for old, _ in replaced}
    return [x.clone() if _storage(x) in olds else x for x in outputs]


def _storage(x: Tensor) -> int:
    """Which memory it is; fakes have no addresses, so the storage object stands for them."""
    key: int = x.untyped_storage()._cdata
    return key


def _check_alike(key: str, old: Tensor, new: object) -> None:
    alike = isinstance(new, Tensor) and new.shape == old.shape and new.dtype == old.dtype
    if not alike:
        now = f"{tuple(new.shape)} {new.dtype}" if isinstance(new, Tensor) else repr(new)
        raise UnsupportedError(
            "the forward pass puts something of another shape in its place",
            where=f"buffer {key!r}",
            by=f"{tuple(old.shape)} {old.dtype}, then {now}",
            hint="give the buffer its final shape before capturing, by calling the model once",
        )
