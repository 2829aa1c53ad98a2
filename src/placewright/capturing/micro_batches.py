"""Micro-batches: equal parts of a training step's batch, along the first dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from placewright.capturing.containers import refilled, tensors_of
from placewright.errors import InputError


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some rows of a batch.

    Attributes
    ----------
    start, rows
        Along the first dimension of every tensor that has as many rows as the batch.
    share
        By which its loss is multiplied.
    """

    start: int
    rows: int
    batch_rows: int
    share: float

    def part(self, value: Tensor) -> Tensor:
        """The rows of a tensor; all of a tensor that has other rows than the batch."""
        if value.dim() == 0 or value.shape[0] != self.batch_rows:
            return value
        return value.narrow(0, self.start, self.rows)

    def parts(self, tree: Any) -> Any:
        """The same containers with the rows of every tensor."""
        return refilled(tree, iter([self.part(value) for value in tensors_of(tree)]))


def micro_batches(tensors: Sequence[Tensor], count: int, reduction: str) -> Iterator[MicroBatch]:
    """Cut a batch; the first ones are a row larger where its rows are no multiple of `count`.

    Raises `InputError`: the batch has fewer rows than micro-batches.

    Parameters
    ----------
    tensors
        Inputs and targets; the first one with a dimension says how many rows the batch has.
    reduction
        ``mean``: every loss is a mean over samples, and counts by the share of its rows, so that
        the gradients are those of the mean over the batch; ``sum``: losses are added up.
    """
    rows = next((int(value.shape[0]) for value in tensors if value.dim()), 0)
    if rows < count:
        raise InputError(
            "a batch cannot be cut into more micro-batches than it has rows",
            where="inputs, first dimension",
            by=f"{rows} rows, {count} micro-batches",
            hint="give larger batches, or fewer micro-batches",
        )
    start = 0
    for k in range(count):
        own = rows // count + (k < rows % count)
        yield MicroBatch(start, own, rows, own / rows if reduction == "mean" else 1.0)
        start += own
