"""Who can start first on a device, compiled: two heaps of ready operators for each.

`coming` has those whose inputs are still on their way, the first to arrive on top; `here` those
that could start as soon as the device is free, the one of the highest rank on top. Operators that
are placed, or no longer open, leave a heap when they come to its top.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import compiled, inner
from placewright.operators.planners.lists.room import Room, is_open
from placewright.operators.planners.lists.scheduling import Rules
from placewright.operators.queues.heaps import pop, push


class Soonest(NamedTuple):
    """The heaps. They hold places: of operators by rank, the highest first, then by index.

    Attributes
    ----------
    place, operator
        Shape (n,), the place of every operator, and the operator at every place.
    ready_s
        Shape (m * n,), one device after the other: when the inputs of the operator at a place are
        there, ``inf`` without a link.
    free_s
        Shape (m,), when each device is free.
    ready
        Shape (n,), whether an operator waits for nobody and is not placed.
    queued
        Shape (m * n,), whether a place is in a heap of a device.
    same
        Shape (n,), the key of `here`: places alone decide.
    """

    place: IntArray
    operator: IntArray
    ready_s: FloatArray
    free_s: FloatArray
    ready: BoolArray
    queued: BoolArray
    here: IntArray
    here_size: IntArray
    coming: IntArray
    coming_size: IntArray
    same: FloatArray


@compiled
def nobody_ready(operator: IntArray, m: int) -> Soonest:
    """Empty heaps; `operator` lists the operators by rank."""
    n = len(operator)
    place = np.empty(n, dtype=np.int64)
    for at in range(n):
        place[operator[at]] = at
    return Soonest(
        place,
        operator,
        np.zeros(m * n),
        np.zeros(m),
        np.zeros(n, dtype=np.bool_),
        np.zeros(m * n, dtype=np.bool_),
        np.empty(m * n, dtype=np.int64),
        np.zeros(m, dtype=np.int64),
        np.empty(m * n, dtype=np.int64),
        np.zeros(m, dtype=np.int64),
        np.zeros(n),
    )


@inner
def start_s(s: Soonest, i: int, d: int) -> float:
    """When operator `i` could start on device `d`, ``inf`` without a link."""
    return max(s.free_s[d], s.ready_s[d * len(s.place) + s.place[i]])  # type: ignore[no-any-return]


@inner
def enter(r: Rules, room: Room, s: Soonest, i: int, d: int) -> None:
    """Queue a ready operator for a device, if it may go there and is not queued."""
    at = d * len(s.place) + s.place[i]
    if s.queued[at] or s.ready_s[at] == np.inf or not is_open(r, room, i, d):
        return
    s.queued[at] = True
    _push_coming(s, d, s.place[i])


@inner
def _push_coming(s: Soonest, d: int, place: int) -> None:
    base = d * len(s.place)
    push(s.coming, base, s.coming_size[d], s.ready_s, base, place)
    s.coming_size[d] += 1


@inner
def _pop_coming(s: Soonest, d: int) -> int:
    base = d * len(s.place)
    s.coming_size[d] -= 1
    return pop(s.coming, base, s.coming_size[d] + 1, s.ready_s, base)


@inner
def _arrive(s: Soonest, d: int) -> None:
    """Whose inputs are there by the time the device is free is here."""
    base = d * len(s.place)
    while s.coming_size[d] > 0 and s.ready_s[base + s.coming[base]] <= s.free_s[d]:
        place = _pop_coming(s, d)
        push(s.here, base, s.here_size[d], s.same, 0, place)
        s.here_size[d] += 1


@inner
def _waits(r: Rules, room: Room, s: Soonest, place: int, d: int) -> bool:
    """Whether a place is still to be placed and open; if not, it is queued no more."""
    i = s.operator[place]
    if s.ready[i] and is_open(r, room, i, d):
        return True
    s.queued[d * len(s.place) + place] = False
    return False


@inner
def first(r: Rules, room: Room, s: Soonest, d: int) -> int:
    """The operator that starts first on device `d`, of several the one of highest rank; or -1."""
    _arrive(s, d)
    base = d * len(s.place)
    while s.here_size[d] > 0:
        if _waits(r, room, s, s.here[base], d):
            return int(s.operator[s.here[base]])
        pop(s.here, base, s.here_size[d], s.same, 0)
        s.here_size[d] -= 1
    while s.coming_size[d] > 0:
        if _waits(r, room, s, s.coming[base], d):
            return int(s.operator[s.coming[base]])
        _pop_coming(s, d)
    return -1
