"""CEFT: critical earliest finish time, compiled. O(t m^2 + e m)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.costs import Costs, kernel_costs, move_time


@dataclass(frozen=True, slots=True, eq=False)
class Ceft:
    """CEFT's tables and critical path.

    Vasudevan, Gregg, arXiv 1701.08800. With w(i,p) the time of operator i on device p and
    c(k,q -> i,p) the transfer time, zero on one device:

        ceft(i,p)    = w(i,p) + max over producers k of min over q of ceft(k,q) + c(k,q -> i,p)
        ceft_up(i,p) = w(i,p) + max over consumers j of min over q of c(i,p -> j,q) + ceft_up(j,q)

    Attributes
    ----------
    ceft_s, ceft_up_s
        Shape (n, m), seconds; ``inf`` where an operator is not allowed or cannot be reached.
    critical_s
        max over sinks of min over devices of `ceft_s`.
    path, path_devices
        Operators of the critical path from entry to exit, and CEFT's device for each.
    through_s
        ``ceft + ceft_up - w``, shape (n, m): the longest way through operator i on device p.
    """

    ceft_s: FloatArray
    ceft_up_s: FloatArray
    critical_s: float
    path: IntArray
    path_devices: IntArray

    through_s: FloatArray

    @property
    def slack_s(self) -> FloatArray:
        """``critical_s - through_s``; ``-inf`` where not allowed.

        Below zero where this choice alone makes the path through it longer than critical.
        """
        return self.critical_s - self.through_s


def ceft(problem: OperatorProblem) -> Ceft:
    """CEFT of a problem; respects pins, groups' allowed devices and missing links.

    Raises `InfeasibleError` (an operator that no allowed device can reach from its producers).
    """
    costs = kernel_costs(problem)
    work = np.where(problem.allowed(), problem.compute_s, np.inf)
    down, arrival, via = _down(costs, work)
    up = _up(costs, work)
    least = down.min(axis=1)
    if not np.isfinite(least).all():
        op = problem.operator_names[int(np.flatnonzero(~np.isfinite(least))[0])]
        raise InfeasibleError(
            f"no allowed device can get all inputs of {op!r}",
            where=problem.name,
            hint="add a link, or drop a pin",
        )
    path, devices = _path(costs, down, arrival, via)
    through = np.where(np.isfinite(work), down + up - np.where(np.isfinite(work), work, 0), np.inf)
    return Ceft(down, up, float(least.max()), path, devices, through)


@njit_cached
def _down(c: Costs, work: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """ceft, and for every tensor and device: earliest arrival and where from."""
    n, m = work.shape
    t = len(c.producer)
    table = np.zeros((n, m))
    arrival, via = np.empty((t, m)), np.zeros((t, m), dtype=np.int64)
    for i in c.order:
        for p in range(m):
            ready = 0.0
            for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
                ready = max(ready, arrival[c.in_tensors[a], p])
            table[i, p] = ready + work[i, p]
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            for p in range(m):
                arrival[k, p] = np.inf
                for q in range(m):
                    at = table[i, q] + move_time(c, k, q, p)
                    if at < arrival[k, p]:
                        arrival[k, p], via[k, p] = at, q
    return table, arrival, via


@njit_cached
def _up(c: Costs, work: FloatArray) -> FloatArray:
    """ceft_up."""
    n, m = work.shape
    table = np.zeros((n, m))
    for at in range(n - 1, -1, -1):
        i = c.order[at]
        for p in range(m):
            tail = 0.0
            for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
                k = c.out_tensors[a]
                for b in range(c.offsets[k], c.offsets[k + 1]):
                    j = c.consumers[b]
                    way = np.inf
                    for q in range(m):
                        way = min(way, move_time(c, k, p, q) + table[j, q])
                    tail = max(tail, way)
            table[i, p] = work[i, p] + tail
    return table


@njit_cached
def _path(
    c: Costs, table: FloatArray, arrival: FloatArray, via: IntArray
) -> tuple[IntArray, IntArray]:
    """Follow the arg max-min back from the last sink; ties to the earlier operator."""
    n = len(table)
    last, worst = -1, -1.0
    for i in range(n):
        least = table[i].min()
        if least > worst:
            last, worst = i, least
    path, devices = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    i, p, size = last, table[last].argmin(), 0
    while True:
        path[size], devices[size] = i, p
        size += 1
        tensor, latest = -1, -1.0
        for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
            k = c.in_tensors[a]
            if arrival[k, p] > latest:
                tensor, latest = k, arrival[k, p]
        if tensor < 0:
            return path[:size][::-1].copy(), devices[:size][::-1].copy()
        i, p = c.producer[tensor], via[tensor, p]
