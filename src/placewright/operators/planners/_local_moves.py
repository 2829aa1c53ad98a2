"""Local moves on the judge, compiled: what every search on placements shares.

One move takes an operator, preferably a critical one, and sends it alone, with what is connected
to it, or with a stretch of the topological order to another device, or exchanges two groups.
The judge plays every move. Memory comes first: a move that needs fewer bytes too many is taken,
one that needs more is not; among equals simulated annealing decides on the value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.arrays import BoolArray, FloatArray, IntArray
from placewright.compiled import compiled, lean
from placewright.operators._board import Layout
from placewright.operators._kernels import DONE, Mode, run
from placewright.operators._scores import score
from placewright.operators._swift import Swift

VALUE, OVER, BEST_VALUE, BEST_OVER, TEMPERATURE = 0, 1, 2, 3, 4
"""Slots of `Walk.score`."""

RANDOM, CRITICAL, MOVED, EVALUATED = 0, 1, 2, 3
"""Slots of `Walk.counts`: random state, lengths of the two lists, placements played."""


class Scene(NamedTuple):
    """What does not change while moving.

    Attributes
    ----------
    group_start, members
        CSR: operators of each group.
    neighbour_start, neighbours
        CSR: producers and consumers of each operator.
    allowed
        Shape (groups, m).
    topological, position
        Shape (n,), a topological order and the place of each operator in it.
    order
        Fixed priorities, or empty for the upward rank under each placement.
    """

    swift: Swift
    mode: Mode
    throughput: bool
    group: IntArray
    group_start: IntArray
    members: IntArray
    neighbour_start: IntArray
    neighbours: IntArray
    allowed: BoolArray
    topological: IntArray
    position: IntArray
    order: IntArray


class Walk(NamedTuple):
    """Where the search is: current and best placement, their scores, and scratch lists."""

    place: IntArray
    best: IntArray
    score: FloatArray
    counts: IntArray
    critical: IntArray
    moved: IntArray
    moved_from: IntArray
    seen: BoolArray
    load_s: FloatArray


@compiled
def begin(s: Scene, w: IntArray, x: FloatArray, o: Layout, place: IntArray, seed: int) -> Walk:
    """A walk that starts at `place`."""
    n, groups = len(place), len(s.group_start) - 1
    walk = Walk(
        place.copy(),
        place.copy(),
        np.full(5, np.inf),
        np.zeros(4, dtype=np.int64),
        np.zeros(2 * n, dtype=np.int64),
        np.zeros(groups, dtype=np.int64),
        np.zeros(groups, dtype=np.int64),
        np.zeros(groups, dtype=np.bool_),
        np.zeros(s.allowed.shape[1]),
    )
    walk.counts[RANDOM] = (seed * 2 + 1) & 0x7FFFFFFF
    walk.score[VALUE], walk.score[OVER] = _play(s, w, x, o, walk)
    walk.score[BEST_VALUE], walk.score[BEST_OVER] = walk.score[VALUE], walk.score[OVER]
    return walk


@lean
def wander(
    s: Scene,
    w: IntArray,
    x: FloatArray,
    o: Layout,
    walk: Walk,
    evaluations: int,
    cooling: float,
) -> None:
    """Play `evaluations` moves; the temperature is multiplied by `cooling` after each."""
    stop = walk.counts[EVALUATED] + evaluations
    idle = 0
    while walk.counts[EVALUATED] < stop and idle < 100 * evaluations:
        if not _propose(s, walk):
            idle += 1
            continue
        value, over = _play(s, w, x, o, walk)
        if _accepted(walk, value, over):
            walk.score[VALUE], walk.score[OVER] = value, over
            if over < walk.score[BEST_OVER] or (
                over == walk.score[BEST_OVER] and value < walk.score[BEST_VALUE]
            ):
                walk.score[BEST_VALUE], walk.score[BEST_OVER] = value, over
                for i in range(len(walk.place)):
                    walk.best[i] = walk.place[i]
        else:
            _undo(s, walk)
        walk.score[TEMPERATURE] *= cooling


@lean
def _play(s: Scene, w: IntArray, x: FloatArray, o: Layout, walk: Walk) -> tuple[float, float]:
    """Value and bytes over of the current placement."""
    walk.counts[EVALUATED] += 1
    value, over = score(s.swift, w, x, o, s.mode, s.throughput, walk.place, s.order, walk.load_s)
    return value, np.inf if value == np.inf else float(over)


@lean
def _accepted(walk: Walk, value: float, over: float) -> bool:
    if over != walk.score[OVER]:
        return bool(over < walk.score[OVER])
    worse = value - walk.score[VALUE]
    if worse <= 0:
        return True
    heat = walk.score[TEMPERATURE]
    return bool(heat > 0 and _chance(walk) < np.exp(-worse / heat))


@lean
def _draw(walk: Walk, below: int) -> int:
    """A number in [0, below), by Marsaglia's xorshift on 31 bits, then a mix."""
    x = walk.counts[RANDOM]
    x ^= (x << 13) & 0x7FFFFFFF
    x ^= x >> 17
    x ^= (x << 5) & 0x7FFFFFFF
    walk.counts[RANDOM] = x
    return int((x * 2654435761 >> 11) % below)


@lean
def _chance(walk: Walk) -> float:
    return _draw(walk, 1 << 20) / (1 << 20)


@lean
def _propose(s: Scene, walk: Walk) -> bool:
    """Change the current placement; False if nothing changed."""
    walk.counts[MOVED] = 0
    i = _pick(s, walk)
    here = walk.place[i]
    there = _target(s, walk, i)
    if there == here or not s.allowed[s.group[i], there]:
        return False
    kind = _draw(walk, 10)
    if kind < 5:
        _send(s, walk, s.group[i], there)
    elif kind < 7:
        _send_stretch(s, walk, i, there)
    elif kind < 9:
        _send_connected(s, walk, i, there)
    else:
        _exchange(s, walk, i, there)
    for x in range(walk.counts[MOVED]):
        walk.seen[walk.moved[x]] = False
    return bool(walk.counts[MOVED] > 0)


@lean
def _pick(s: Scene, walk: Walk) -> int:
    if walk.counts[CRITICAL] > 0 and _draw(walk, 3) > 0:
        return int(walk.critical[_draw(walk, walk.counts[CRITICAL])])
    return _draw(walk, len(walk.place))


@lean
def _target(s: Scene, walk: Walk, i: int) -> int:
    """A neighbour's device half of the time, else any."""
    first, last = s.neighbour_start[i], s.neighbour_start[i + 1]
    if last > first and _draw(walk, 2) == 0:
        return int(walk.place[s.neighbours[first + _draw(walk, last - first)]])
    return _draw(walk, s.allowed.shape[1])


@lean
def _send(s: Scene, walk: Walk, g: int, there: int) -> None:
    """Move a group once, if it may go there and is not there."""
    here = walk.place[s.members[s.group_start[g]]]
    if walk.seen[g] or here == there or not s.allowed[g, there]:
        return
    walk.seen[g] = True
    walk.moved[walk.counts[MOVED]], walk.moved_from[walk.counts[MOVED]] = g, here
    walk.counts[MOVED] += 1
    for a in range(s.group_start[g], s.group_start[g + 1]):
        walk.place[s.members[a]] = there


@lean
def _undo(s: Scene, walk: Walk) -> None:
    for x in range(walk.counts[MOVED]):
        g = walk.moved[x]
        for a in range(s.group_start[g], s.group_start[g + 1]):
            walk.place[s.members[a]] = walk.moved_from[x]


@lean
def _send_stretch(s: Scene, walk: Walk, i: int, there: int) -> None:
    """Everything on the device of `i` within a stretch of the topological order."""
    here, n = walk.place[i], len(walk.place)
    length = 2
    while length < n // 2 and _draw(walk, 4) > 0:
        length *= 2
    first = s.position[i] - _draw(walk, length)
    for x in range(max(0, first), min(n, first + length)):
        j = s.topological[x]
        if walk.place[j] == here:
            _send(s, walk, s.group[j], there)


@lean
def _send_connected(s: Scene, walk: Walk, i: int, there: int) -> None:
    """Groups reached from `i` over tensors within its device, nearest first."""
    here, limit = walk.place[i], 2
    while limit < len(walk.moved) // 2 and _draw(walk, 3) > 0:
        limit *= 2
    _send(s, walk, s.group[i], there)
    at = 0
    while at < walk.counts[MOVED]:
        g = walk.moved[at]
        at += 1
        for b in range(s.group_start[g], s.group_start[g + 1]):
            j = s.members[b]
            for a in range(s.neighbour_start[j], s.neighbour_start[j + 1]):
                if walk.counts[MOVED] >= limit:
                    return
                if walk.place[s.neighbours[a]] == here:
                    _send(s, walk, s.group[s.neighbours[a]], there)


@lean
def _exchange(s: Scene, walk: Walk, i: int, there: int) -> None:
    """`i` goes there and one group from there comes here."""
    here, n = walk.place[i], len(walk.place)
    start = _draw(walk, n)
    for x in range(n):
        j = (start + x) % n
        if walk.place[j] == there and s.allowed[s.group[j], here]:
            _send(s, walk, s.group[i], there)
            _send(s, walk, s.group[j], here)
            return


@compiled
def list_critical(s: Scene, w: IntArray, x: FloatArray, o: Layout, walk: Walk) -> None:
    """From the last operator back along what each one waited for: a tensor or its device."""
    walk.counts[CRITICAL] = 0
    walk.counts[EVALUATED] += 1
    if run(w, x, o, s.mode, walk.place, s.order) != DONE:
        return
    end_s = x[o.end_s : o.end_s + o.n]
    by_end = np.argsort(end_s)
    ends = end_s[by_end]
    i = by_end[-1]
    for size in range(o.n):
        walk.critical[size] = i
        walk.counts[CRITICAL] = size + 1
        start = x[o.start_s + i]
        if start <= 0.0:
            return
        at = np.searchsorted(ends, start)
        i = _blocker(w, x, o, walk.place, i, by_end[at : np.searchsorted(ends, start, "right")])
        if i < 0:
            return


@compiled
def _blocker(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, i: int, ended: IntArray
) -> int:
    """What operator `i` waited for: its latest input or, if that came earlier, its device.

    `ended` lists the operators that ended when it started.
    """
    latest, source = -1.0, -1
    for a in range(w[o.in_offsets + i], w[o.in_offsets + i + 1]):
        k = w[o.in_tensors + a]
        p = w[o.producer + k]
        arrival = x[o.end_s + p]
        if place[p] != place[i]:
            e = w[o.first_move + k]
            while w[o.move_target + e] != place[i]:
                e += 1
            arrival = x[o.event_s + o.m + e]
        if arrival > latest:
            latest, source = arrival, p
    if latest < x[o.start_s + i]:
        for j in ended:
            if place[j] == place[i] and j != i:
                return int(j)
    return source
