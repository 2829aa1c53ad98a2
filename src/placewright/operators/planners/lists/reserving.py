"""List scheduling that reserves time on channels, compiled."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import compiled, inner
from placewright.operators.planners.lists.scheduling import (
    Rules,
    Timeline,
    book,
    candidates,
    gap,
    grown,
    unbook,
)
from placewright.operators.structure.costs import Costs, move_time


@inner
def _wanted(
    c: Costs,
    place: IntArray,
    end_s: FloatArray,
    arrived_s: FloatArray,
    i: int,
    d: int,
    out: IntArray,
) -> int:
    """Tensors that `i` needs on `d` and that nobody has sent there, first made first."""
    size = 0
    for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
        k = c.in_tensors[a]
        if place[c.producer[k]] == d or arrived_s[k, d] < np.inf:
            continue
        made = end_s[c.producer[k]]
        x = size
        while x > 0 and end_s[c.producer[out[x - 1]]] > made:
            out[x] = out[x - 1]
            x -= 1
        out[x] = k
        size += 1
    return size


@inner
def _reserve(
    c: Costs,
    lanes: Timeline,
    place: IntArray,
    end_s: FloatArray,
    d: int,
    wanted: IntArray,
    size: int,
    slots: IntArray,
    until_s: FloatArray,
) -> float:
    """Book every wanted transfer to `d`; returns when the last arrives, ``inf`` without a link."""
    last = 0.0
    for x in range(size):
        k = wanted[x]
        source = place[c.producer[k]]
        took = move_time(c, k, source, d)
        slots[x] = -1
        if took == np.inf:
            last = np.inf
            continue
        lane = c.channel[source, d]
        start, slots[x] = gap(lanes, lane, end_s[c.producer[k]], took)
        until_s[x] = start + took
        book(lanes, lane, slots[x], start, until_s[x])
        last = max(last, until_s[x])
    return last


@inner
def _release(
    c: Costs, lanes: Timeline, place: IntArray, d: int, wanted: IntArray, size: int, slots: IntArray
) -> None:
    """Undo `_reserve`."""
    for x in range(size - 1, -1, -1):
        if slots[x] >= 0:
            unbook(lanes, c.channel[place[c.producer[wanted[x]]], d], slots[x])


@inner
def _there(
    c: Costs, place: IntArray, end_s: FloatArray, arrived_s: FloatArray, i: int, d: int
) -> float:
    """When those inputs of `i` that are on `d` or on their way are there."""
    ready = 0.0
    for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
        k = c.in_tensors[a]
        if place[c.producer[k]] == d:
            ready = max(ready, end_s[c.producer[k]])
        elif arrived_s[k, d] < np.inf:
            ready = max(ready, arrived_s[k, d])
    return ready


@compiled
def _with_room(lanes: Timeline, more: int) -> Timeline:
    """Lanes that can each take `more` slots."""
    fullest = 0
    for size in lanes.size:
        fullest = max(fullest, size)
    return grown(lanes) if fullest + more > lanes.start_s.shape[1] else lanes


@compiled
def reserving_schedule(
    c: Costs, r: Rules, sequence: IntArray, channels: int
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Each operator where it ends first when its transfers wait for their channels.

    Like `list_schedule`; transfers are booked in the gaps of their channels, in the order in
    which their tensors are made.
    """
    n, m = c.compute_s.shape
    place = np.full(n, -1)
    start_s, end_s = np.zeros(n), np.zeros(n)
    arrived_s = np.full((len(c.producer), m), np.inf)
    chosen, used = np.full(len(r.group_bytes), -1), np.zeros(m)
    open_ = np.empty(m, dtype=np.bool_)
    most = 1
    for i in range(n):
        most = max(most, c.in_offsets[i + 1] - c.in_offsets[i])
    wanted, slots, until_s = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    line = Timeline(np.empty((m, 64)), np.empty((m, 64)), np.zeros(m, dtype=np.int64))
    shape = (max(1, channels), 64 + most)
    lanes = Timeline(np.empty(shape), np.empty(shape), np.zeros(shape[0], dtype=np.int64))
    for i in sequence:
        candidates(c, r, chosen, used, i, open_)
        lanes = _with_room(lanes, most)
        best, best_end = -1, np.inf
        for d in range(m):
            if not open_[d]:
                continue
            size = _wanted(c, place, end_s, arrived_s, i, d, wanted)
            ready = _reserve(c, lanes, place, end_s, d, wanted, size, slots, until_s)
            _release(c, lanes, place, d, wanted, size, slots)
            if ready == np.inf:
                continue
            ready = max(ready, _there(c, place, end_s, arrived_s, i, d))
            end = gap(line, d, ready, c.compute_s[i, d])[0] + c.compute_s[i, d]
            if best < 0 or end < best_end:
                best, best_end = d, end
        if best < 0:
            return place, start_s, end_s
        size = _wanted(c, place, end_s, arrived_s, i, best, wanted)
        ready = _reserve(c, lanes, place, end_s, best, wanted, size, slots, until_s)
        for x in range(size):
            arrived_s[wanted[x], best] = until_s[x]
        ready = max(ready, _there(c, place, end_s, arrived_s, i, best))
        start_s[i], slot = gap(line, best, ready, c.compute_s[i, best])
        place[i], end_s[i] = best, start_s[i] + c.compute_s[i, best]
        if line.size[best] == line.start_s.shape[1]:
            line = grown(line)
        book(line, best, slot, start_s[i], end_s[i])
        if chosen[r.group[i]] < 0:
            chosen[r.group[i]] = best
            used[best] += r.group_bytes[r.group[i]]
    return place, start_s, end_s
