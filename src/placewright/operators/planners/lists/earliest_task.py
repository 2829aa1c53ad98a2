"""Earliest task first, compiled: what m-ETF and m-SCT share.

Of all pairs of a ready operator and a device with room, the one that can start first is taken;
ties go to the higher upward rank, then the earlier operator and device. Each device keeps its own
ready operators in order (`lists.soonest`): O((n + tensor uses) m log n), where looking through all
pairs takes O(n r m) with r ready operators at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import compiled, inner
from placewright.operators.planners.lists.room import Room, empty_room, is_open, next_without
from placewright.operators.planners.lists.scheduling import Rules
from placewright.operators.planners.lists.soonest import (
    Soonest,
    enter,
    first,
    nobody_ready,
    start_s,
)
from placewright.operators.structure.costs import Costs, move_time


class Members(NamedTuple):
    """CSR: the operators of every colocation group."""

    offsets: IntArray
    operators: IntArray


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
    by_group = np.argsort(r.group, kind="stable")
    offsets = np.searchsorted(r.group[by_group], np.arange(len(r.group_bytes) + 1))
    members = Members(offsets, by_group)
    return _schedule(c, r, np.argsort(-rank, kind="stable"), favourite, members)


@compiled
def _schedule(
    c: Costs, r: Rules, by_rank: IntArray, favourite: IntArray, members: Members
) -> tuple[IntArray, FloatArray, FloatArray]:
    n, m = c.compute_s.shape
    place, begin_s, end_s = np.full(n, -1), np.zeros(n), np.zeros(n)
    room, s = empty_room(c, r), nobody_ready(by_rank, m)
    last, waiting = np.full(m, -1), np.empty(n, dtype=np.int64)
    for d in range(m):
        _fill(r, room, s, d)
    for i in range(n):
        waiting[i] = c.in_offsets[i + 1] - c.in_offsets[i]
        if waiting[i] == 0:
            _appear(r, room, s, i)
    for _ in range(n):
        i, d = _soonest_pair(r, room, s, favourite, last)
        if i < 0:
            break
        place[i], begin_s[i] = d, start_s(s, i, d)
        end_s[i] = begin_s[i] + c.compute_s[i, d]
        s.ready[i], s.free_s[d], last[d] = False, end_s[i], i
        _take(c, r, room, s, members, i, d)
        _hand_on(c, r, room, s, waiting, end_s[i], i, d)
    return place, begin_s, end_s


@inner
def _soonest_pair(
    r: Rules, room: Room, s: Soonest, favourite: IntArray, last: IntArray
) -> tuple[int, int]:
    """The operator and the device that are next; -1 if there are none.

    A device that is kept for somebody who could start there has nobody else to offer.
    """
    best, device, begin, kept = -1, -1, np.inf, True
    for d in range(len(last)):
        owner = favourite[last[d]] if last[d] >= 0 else -1
        claimed = owner >= 0 and s.ready[owner]
        i, taken = owner, False
        if not (claimed and is_open(r, room, owner, d) and start_s(s, owner, d) < np.inf):
            i, taken = first(r, room, s, d), claimed
        if i < 0:
            continue
        start = start_s(s, i, d)
        sooner = start < begin or (start == begin and s.place[i] < s.place[best])
        if best < 0 or (kept and not taken) or (taken == kept and sooner):
            best, device, begin, kept = i, d, start, taken
    return best, device


@inner
def _appear(r: Rules, room: Room, s: Soonest, i: int) -> None:
    """An operator waits for nobody any more."""
    s.ready[i] = True
    for d in range(len(s.free_s)):
        enter(r, room, s, i, d)


@inner
def _fill(r: Rules, room: Room, s: Soonest, d: int) -> None:
    """Device `d` holds more: for whom it was the last with room, all are open."""
    i = next_without(r, room, d)
    while i >= 0:
        if room.homes[i] == 0 and s.ready[i]:
            _appear(r, room, s, i)
        i = next_without(r, room, d)


@inner
def _take(c: Costs, r: Rules, room: Room, s: Soonest, members: Members, i: int, d: int) -> None:
    """Device `d` takes in operator `i`: its outputs, and its group where it is the first of it."""
    g = r.group[i]
    if room.chosen[g] < 0:
        room.chosen[g] = d
        room.used_bytes[d] += r.group_bytes[g]
        for a in range(members.offsets[g], members.offsets[g + 1]):
            if s.ready[members.operators[a]]:
                enter(r, room, s, members.operators[a], d)
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        room.used_bytes[d] += c.home_bytes[c.out_tensors[a]]
    _fill(r, room, s, d)


@inner
def _hand_on(
    c: Costs, r: Rules, room: Room, s: Soonest, waiting: IntArray, end_s: float, i: int, d: int
) -> None:
    """The tensors of operator `i` go wherever their consumers could be."""
    n, m = c.compute_s.shape
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        k = c.out_tensors[a]
        for b in range(c.offsets[k], c.offsets[k + 1]):
            j = c.consumers[b]
            for q in range(m):
                at = q * n + s.place[j]
                s.ready_s[at] = max(s.ready_s[at], end_s + move_time(c, k, d, q))
            waiting[j] -= 1
            if waiting[j] == 0:
                _appear(r, room, s, j)
