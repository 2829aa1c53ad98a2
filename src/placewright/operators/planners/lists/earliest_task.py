"""Earliest task first, compiled: what m-ETF and m-SCT share.

Of all pairs of a ready operator and a device with room, the one that can start first is taken;
ties go to the higher upward rank, then the earlier operator and device. O(n r m) with r ready
operators at a time.
"""

from __future__ import annotations

import numpy as np

from placewright.arrays import BoolArray, FloatArray, IntArray
from placewright.compiled import compiled, inner
from placewright.operators.planners.lists.scheduling import Rules, candidates
from placewright.operators.structure.costs import Costs, move_time


@compiled
def earliest_task(
    c: Costs, r: Rules, rank: FloatArray, favourite: IntArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Place and time of every operator; -1 in `place` where no device can be reached.

    Parameters
    ----------
    favourite
        Shape (n,): the consumer for which the device of an operator is kept free, -1 for none.
        Others get that device only if nothing else can start anywhere.
    """
    n, m = c.compute_s.shape
    place = np.full(n, -1)
    start_s, end_s, free_s = np.zeros(n), np.zeros(n), np.zeros(m)
    chosen = np.full(len(r.group_bytes), -1)
    used = np.zeros(m)
    ready_s = np.zeros((n, m))
    open_ = np.empty(m, dtype=np.bool_)
    last = np.full(m, -1)
    waiting, ready = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    is_ready = np.zeros(n, dtype=np.bool_)
    size = 0
    for i in range(n):
        waiting[i] = c.in_offsets[i + 1] - c.in_offsets[i]
        if waiting[i] == 0:
            ready[size], is_ready[i] = i, True
            size += 1
    while size > 0:
        at, d, begin = _first(
            c,
            r,
            rank,
            favourite,
            ready[:size],
            is_ready,
            ready_s,
            free_s,
            chosen,
            used,
            last,
            open_,
        )
        if at < 0:
            return place, start_s, end_s
        i = ready[at]
        size -= 1
        ready[at] = ready[size]
        is_ready[i] = False
        place[i], start_s[i], end_s[i] = d, begin, begin + c.compute_s[i, d]
        free_s[d], last[d] = end_s[i], i
        if chosen[r.group[i]] < 0:
            chosen[r.group[i]] = d
            used[d] += r.group_bytes[r.group[i]]
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            used[d] += c.home_bytes[k]
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                for q in range(m):
                    ready_s[j, q] = max(ready_s[j, q], end_s[i] + move_time(c, k, d, q))
                waiting[j] -= 1
                if waiting[j] == 0:
                    ready[size], is_ready[j] = j, True
                    size += 1
    return place, start_s, end_s


@inner
def _first(
    c: Costs,
    r: Rules,
    rank: FloatArray,
    favourite: IntArray,
    ready: IntArray,
    is_ready: BoolArray,
    ready_s: FloatArray,
    free_s: FloatArray,
    chosen: IntArray,
    used: FloatArray,
    last: IntArray,
    open_: BoolArray,
) -> tuple[int, int, float]:
    """The pair that starts first: index into `ready`, device, start; -1 if there is none."""
    best, device, begin, kept = -1, -1, np.inf, True
    for at in range(len(ready)):
        i = ready[at]
        candidates(c, r, chosen, used, i, open_)
        for d in range(len(free_s)):
            if not open_[d] or ready_s[i, d] == np.inf:
                continue
            start = max(free_s[d], ready_s[i, d])
            other = favourite[last[d]] if last[d] >= 0 else -1
            taken = other >= 0 and other != i and is_ready[other]
            if best >= 0:
                if taken != kept:
                    if taken:
                        continue
                elif start != begin:
                    if start > begin:
                        continue
                elif rank[i] < rank[ready[best]] or (
                    rank[i] == rank[ready[best]] and i >= ready[best]
                ):
                    continue
            best, device, begin, kept = at, d, start, taken
    return best, device, begin
