"""Insertion-based list scheduling, compiled: what HEFT, CPOP and PEFT share.

Every device (and, where links are reserved, every channel) has a timeline of busy slots sorted
by time. A gap is searched from the first slot that ends after the operator is ready, between any
two slots and before the first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import compiled, inner, lean
from placewright.operators.queues.heaps import pop, push
from placewright.operators.structure.costs import Costs, move_time


class Rules(NamedTuple):
    """Where operators may go.

    Attributes
    ----------
    allowed
        Shape (n, m).
    group, group_bytes
        Colocation group of every operator; resident bytes of every group.
    budget_bytes
        Shape (m,), for resident bytes and the operator's own outputs.
    forced
        Shape (n,), device an operator should go to if its group allows, -1 for any.
    """

    allowed: BoolArray
    group: IntArray
    group_bytes: FloatArray
    budget_bytes: FloatArray
    forced: IntArray


class Timeline(NamedTuple):
    """Busy slots of each lane, by time."""

    start_s: FloatArray
    end_s: FloatArray
    size: IntArray


@compiled
def priority_sequence(c: Costs, key: FloatArray) -> IntArray:
    """Operators by (least key, topological position), none before its producers."""
    n = len(key)
    at = np.empty(n, dtype=np.int64)
    placed = np.empty(n)
    for x in range(n):
        at[c.order[x]] = x
        placed[x] = key[c.order[x]]
    waiting, heap = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    size = 0
    for i in range(n):
        waiting[i] = c.in_offsets[i + 1] - c.in_offsets[i]
        if waiting[i] == 0:
            push(heap, 0, size, placed, 0, at[i])
            size += 1
    sequence = np.empty(n, dtype=np.int64)
    for step in range(n):
        i = c.order[pop(heap, 0, size, placed, 0)]
        size -= 1
        sequence[step] = i
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                waiting[j] -= 1
                if waiting[j] == 0:
                    push(heap, 0, size, placed, 0, at[j])
                    size += 1
    return sequence


@compiled
def grown(line: Timeline) -> Timeline:
    """The same slots with room for twice as many."""
    lanes, room = line.start_s.shape
    start_s, end_s = np.empty((lanes, 2 * room)), np.empty((lanes, 2 * room))
    for lane in range(lanes):
        for x in range(line.size[lane]):
            start_s[lane, x], end_s[lane, x] = line.start_s[lane, x], line.end_s[lane, x]
    return Timeline(start_s, end_s, line.size)


@lean
def gap(line: Timeline, lane: int, ready_s: float, took_s: float) -> tuple[float, int]:
    """Earliest start from `ready_s` on, and the place of the new slot."""
    low, high = 0, line.size[lane]
    while low < high:
        middle = (low + high) >> 1
        if line.end_s[lane, middle] > ready_s:
            high = middle
        else:
            low = middle + 1
    at = ready_s
    while low < line.size[lane] and at + took_s > line.start_s[lane, low]:
        at = max(at, line.end_s[lane, low])
        low += 1
    return at, low


@inner
def book(line: Timeline, lane: int, slot: int, start_s: float, end_s: float) -> None:
    """Insert a slot."""
    for x in range(line.size[lane], slot, -1):
        line.start_s[lane, x] = line.start_s[lane, x - 1]
        line.end_s[lane, x] = line.end_s[lane, x - 1]
    line.start_s[lane, slot], line.end_s[lane, slot] = start_s, end_s
    line.size[lane] += 1


@inner
def unbook(line: Timeline, lane: int, slot: int) -> None:
    """Remove a slot."""
    line.size[lane] -= 1
    for x in range(slot, line.size[lane]):
        line.start_s[lane, x] = line.start_s[lane, x + 1]
        line.end_s[lane, x] = line.end_s[lane, x + 1]


@inner
def book_joined(line: Timeline, lane: int, slot: int, start_s: float, end_s: float) -> None:
    """As `book`; slots that touch become one, which keeps timelines short.

    Not where operators may take no time at all: they fit between slots that touch.
    """
    before = slot > 0 and line.end_s[lane, slot - 1] == start_s
    after = slot < line.size[lane] and line.start_s[lane, slot] == end_s
    if before and after:
        line.end_s[lane, slot - 1] = line.end_s[lane, slot]
        unbook(line, lane, slot)
    elif before:
        line.end_s[lane, slot - 1] = end_s
    elif after:
        line.start_s[lane, slot] = start_s
    else:
        book(line, lane, slot, start_s, end_s)


@lean
def candidates(
    c: Costs, r: Rules, chosen: IntArray, used: FloatArray, i: int, out: BoolArray
) -> None:
    """Mark the devices open to operator `i`: group first, then force, then room."""
    g, m = r.group[i], len(out)
    only = chosen[g]
    if only < 0 and r.forced[i] >= 0 and r.allowed[i, r.forced[i]]:
        only = r.forced[i]
    own = r.group_bytes[g]
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        own += c.home_bytes[c.out_tensors[a]]
    room = False
    for d in range(m):
        out[d] = d == only or (only < 0 and r.allowed[i, d])
        room = room or (out[d] and used[d] + own <= r.budget_bytes[d])
    for d in range(m):
        out[d] = out[d] and (only >= 0 or not room or used[d] + own <= r.budget_bytes[d])


@inner
def _arrivals_free(c: Costs, place: IntArray, end_s: FloatArray, i: int, d: int) -> float:
    """When all inputs of `i` are on `d` if transfers do not wait."""
    ready = 0.0
    for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
        k = c.in_tensors[a]
        source = c.producer[k]
        ready = max(ready, end_s[source] + move_time(c, k, place[source], d))
    return ready


@compiled
def list_schedule(
    c: Costs, r: Rules, sequence: IntArray, ahead_s: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Each operator of the sequence on the device of least finish plus `ahead_s`.

    Transfers do not wait. Ties go to the earlier device.

    Parameters
    ----------
    ahead_s
        Shape (n, m): what a device's choice costs later (zero for HEFT, PEFT's table).

    Returns
    -------
    place, start_s, end_s
        Shape (n,); -1 in `place` where no device can be reached.
    """
    n, m = c.compute_s.shape
    place = np.full(n, -1)
    start_s, end_s = np.zeros(n), np.zeros(n)
    chosen = np.full(len(r.group_bytes), -1)
    used = np.zeros(m)
    open_ = np.empty(m, dtype=np.bool_)
    line = Timeline(np.empty((m, 64)), np.empty((m, 64)), np.zeros(m, dtype=np.int64))
    joined = c.compute_s.min() > 0
    for i in sequence:
        candidates(c, r, chosen, used, i, open_)
        best, best_score, best_start, best_slot = -1, np.inf, np.inf, 0
        for d in range(m):
            if not open_[d]:
                continue
            ready = _arrivals_free(c, place, end_s, i, d)
            if ready == np.inf:
                continue
            start, slot = gap(line, d, ready, c.compute_s[i, d])
            score = start + c.compute_s[i, d] + ahead_s[i, d]
            if best < 0 or score < best_score:
                best, best_score, best_start, best_slot = d, score, start, slot
        if best < 0:
            place[i] = -1
            return place, start_s, end_s
        place[i], start_s[i] = best, best_start
        end_s[i] = best_start + c.compute_s[i, best]
        if line.size[best] == line.start_s.shape[1]:
            line = grown(line)
        if joined:
            book_joined(line, best, best_slot, start_s[i], end_s[i])
        else:
            book(line, best, best_slot, start_s[i], end_s[i])
        if chosen[r.group[i]] < 0:
            chosen[r.group[i]] = best
            used[best] += r.group_bytes[r.group[i]]
    return place, start_s, end_s
