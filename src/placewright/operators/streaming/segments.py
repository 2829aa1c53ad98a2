"""Segments: a placement cut into runs of operators for a stream of samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Runs of operators of one device between which a stream may change to another sample.

    Attributes
    ----------
    order
        Shape (n,), every operator once, producers first: segment after segment.
    segment
        Shape (n,), the segment of every operator; segments are numbered in the order of `order`.
    device
        Shape (segments,).
    """

    order: IntArray
    segment: IntArray
    device: IntArray

    def lengths(self, devices: int) -> tuple[tuple[int, ...], ...]:
        """By device, how many operators each of its segments has."""
        sizes = np.bincount(self.segment, minlength=len(self.device)).tolist()
        return tuple(
            tuple(size for size, d in zip(sizes, self.device, strict=True) if d == device)
            for device in range(devices)
        )


def segments_of(problem: OperatorProblem, placement: IntArray) -> Segments:
    """Cut a placement into segments, one per device where the graph of devices has no cycle.

    Otherwise operators are levelled: an operator is one level above the highest of its producers
    on other devices, and no lower than those on its own. Operators of one device and level are a
    segment; what it reads from elsewhere comes from lower levels.
    """
    source, target = problem.consumed_from, problem.consumers
    level = _device_ranks(problem.m, placement[source], placement[target])
    levels = _levels(problem, placement) if level is None else level[placement]
    position = _positions(problem, source, target)
    order: IntArray = np.lexsort((position, placement, levels))
    key = np.stack([levels[order], placement[order]], axis=1)
    new = np.ones(problem.n, dtype=np.bool_)
    new[1:] = (key[1:] != key[:-1]).any(axis=1)
    segment = np.empty(problem.n, dtype=np.int64)
    segment[order] = np.cumsum(new) - 1
    return Segments(order, segment, placement[order][new].astype(np.int64))


def _positions(problem: OperatorProblem, source: IntArray, target: IntArray) -> IntArray:
    """The order within a device: that of the problem, where producers come first in it.

    A captured graph is in the order of the model's own calls, which frees tensors early.
    """
    return np.arange(problem.n) if (source < target).all() else problem.topology.position


def _device_ranks(devices: int, source: IntArray, target: IntArray) -> IntArray | None:
    """Position of every device such that all tensors go forward; ``None`` if there is none."""
    before = np.zeros((devices, devices), dtype=np.bool_)
    before[source, target] = True
    np.fill_diagonal(before, val=False)
    rank = np.full(devices, -1, dtype=np.int64)
    for position in range(devices):
        # Devices that none of those left sends to; the first of them is next.
        free = np.flatnonzero((rank < 0) & ~before[rank < 0].any(axis=0))
        if not len(free):
            return None
        rank[free[0]] = position
    return rank


def _levels(problem: OperatorProblem, placement: IntArray) -> IntArray:
    level = np.zeros(problem.n, dtype=np.int64)
    for i in problem.topology.order:
        made_by = problem.tensor_producer[problem.topology.read_by(i)]
        if len(made_by):
            level[i] = (level[made_by] + (placement[made_by] != placement[i])).max()
    return level
