"""Threshold accepting on placements, each judged by the simulator of queues, compiled.

A move sends a colocation group alone, or with groups connected to it, to another device, or
exchanges two groups. Half of all moves begin at an operator on the critical path. A placement is
accepted when it is worse than the current one by no more than the threshold, which falls to zero
along the walk (Dueck, Scheuer 1990, doi 10.1016/0021-9991(90)90201-B).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_internal, njit_nogil
from placewright.operators.planners.annealing import draw, group_members
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.first_come import QueueState, simulate_queues
from placewright.operators.structure.groups import Groups

CURRENT, BEST = 0, 1
"""Places in `Walk.value`."""

RANDOM, CRITICAL, MOVED = 0, 1, 2
"""Places in `Walk.counts`: random state, lengths of two lists."""


class QueueInstance(NamedTuple):
    """The problem as moves read it.

    Attributes
    ----------
    group, group_start, members
        Group of each operator; CSR of the operators of each group.
    near_start, near
        CSR: groups connected to each group, producers and consumers.
    in_start, in_edge, producer
        CSR: edges into each operator; the producer of each edge.
    allowed
        Shape (groups, m).
    """

    group: IntArray
    group_start: IntArray
    members: IntArray
    near_start: IntArray
    near: IntArray
    in_start: IntArray
    in_edge: IntArray
    producer: IntArray
    allowed: BoolArray


class Walk(NamedTuple):
    """Current and best placement, their values, random state, and scratch lists."""

    place: IntArray
    best: IntArray
    value: FloatArray
    counts: IntArray
    critical: IntArray
    moved: IntArray
    moved_from: IntArray
    seen: BoolArray


def make_instance(problem: OperatorProblem, groups: Groups, state: QueueState) -> QueueInstance:
    """Lists of neighbours and of edges into operators."""
    producer = problem.tensor_producer[state.edge_tensor]
    own, other = groups.group[producer], groups.group[state.edge_target]
    pairs = np.unique(np.stack([np.r_[own, other], np.r_[other, own]], axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    count = len(groups.first)
    group_start, members = group_members(groups.group, count)
    in_edge = np.argsort(state.edge_target, kind="stable")
    return QueueInstance(
        groups.group,
        group_start,
        members,
        np.searchsorted(pairs[:, 0], np.arange(count + 1)),
        np.ascontiguousarray(pairs[:, 1]),
        np.searchsorted(state.edge_target[in_edge], np.arange(problem.n + 1)),
        in_edge,
        producer,
        groups.allowed,
    )


def make_walk(instance: QueueInstance, place: IntArray, value: float, seed: int) -> Walk:
    """A walk that starts at `place`; `value` in the unit of the queue state."""
    n, groups = len(place), len(instance.allowed)
    counts = np.zeros(3, dtype=np.int64)
    counts[RANDOM] = (seed * 2654435761 + 88172645) % 0x7FFFFFFF or 1
    return Walk(
        place.copy(),
        place.copy(),
        np.array([value, value]),
        counts,
        np.zeros(n, dtype=np.int64),
        np.zeros(groups, dtype=np.int64),
        np.zeros(groups, dtype=np.int64),
        np.zeros(groups, dtype=np.bool_),
    )


@njit_nogil
def accept_moves(
    b: QueueState, s: QueueInstance, walk: Walk, evaluations: int, threshold: float, fall: float
) -> None:
    """Evaluate `evaluations` moves; the threshold falls by `fall` after each."""
    # The state has what was tried last, maybe a move that was taken back: simulate again.
    walk.counts[MOVED] = 0
    simulate_queues(b, walk.place)
    _list_critical(b, s, walk)
    for _ in range(evaluations):
        limit = walk.value[CURRENT] + max(0.0, threshold)
        threshold -= fall
        _propose(s, walk)
        if walk.counts[MOVED] == 0:
            continue
        value = simulate_queues(b, walk.place)
        if value <= limit:
            walk.value[CURRENT] = value
            _list_critical(b, s, walk)
            if value < walk.value[BEST]:
                walk.value[BEST] = value
                walk.best[:] = walk.place
        else:
            for x in range(walk.counts[MOVED]):
                _put(s, walk, walk.moved[x], walk.moved_from[x])


@njit_internal
def _put(s: QueueInstance, walk: Walk, g: int, d: int) -> None:
    for x in range(s.group_start[g], s.group_start[g + 1]):
        walk.place[s.members[x]] = d


@njit_internal
def _send(s: QueueInstance, walk: Walk, g: int, d: int) -> None:
    """Move a group and record where it was; nothing if it is there or not allowed there."""
    at = walk.place[s.members[s.group_start[g]]]
    if at == d or not s.allowed[g, d]:
        return
    walk.moved[walk.counts[MOVED]] = g
    walk.moved_from[walk.counts[MOVED]] = at
    walk.counts[MOVED] += 1
    _put(s, walk, g, d)


@njit_internal
def _propose(s: QueueInstance, walk: Walk) -> None:
    """Make one random move, which may change nothing."""
    c, m = walk.counts, s.allowed.shape[1]
    c[MOVED] = 0
    if c[CRITICAL] > 0 and draw(c, RANDOM, 2) == 0:
        g = s.group[walk.critical[draw(c, RANDOM, c[CRITICAL])]]
    else:
        g = draw(c, RANDOM, len(s.allowed))
    near = s.near_start[g + 1] - s.near_start[g]
    kind, d = draw(c, RANDOM, 100), draw(c, RANDOM, m)
    here = walk.place[s.members[s.group_start[g]]]
    if kind < 30 or near == 0:
        _send(s, walk, g, d)
    elif kind < 50:  # to where a neighbour is
        h = s.near[s.near_start[g] + draw(c, RANDOM, near)]
        _send(s, walk, g, walk.place[s.members[s.group_start[h]]])
    elif kind < 60:  # exchange with any other group
        h = draw(c, RANDOM, len(s.allowed))
        there = walk.place[s.members[s.group_start[h]]]
        if there != here and s.allowed[g, there] and s.allowed[h, here]:
            _send(s, walk, g, there)
            _send(s, walk, h, here)
    elif kind < 85:  # with some or all of its neighbours
        if draw(c, RANDOM, 4) == 0:
            d = here  # they come to it
        every = draw(c, RANDOM, 2) == 0
        _send(s, walk, g, d)
        for x in range(s.near_start[g], s.near_start[g + 1]):
            if every or draw(c, RANDOM, 2) == 0:
                _send(s, walk, s.near[x], d)
    else:  # a connected part that shares its device, grown from it
        _send_part(s, walk, g, here, d, 2 + draw(c, RANDOM, 14))


@njit_internal
def _send_part(s: QueueInstance, walk: Walk, g: int, here: int, d: int, most: int) -> None:
    if d == here or not s.allowed[g, d]:
        return
    _send(s, walk, g, d)
    # `moved` is the queue of a breadth-first search and the log for taking back at once.
    at = 0
    while at < walk.counts[MOVED] and walk.counts[MOVED] < most:
        f = walk.moved[at]
        for x in range(s.near_start[f], s.near_start[f + 1]):
            h = s.near[x]
            on = walk.place[s.members[s.group_start[h]]]
            if on == here and walk.counts[MOVED] < most and draw(walk.counts, RANDOM, 4) > 0:
                _send(s, walk, h, d)
        at += 1


@njit_internal
def _list_critical(b: QueueState, s: QueueInstance, walk: Walk) -> None:
    """Operators of one chain without a gap that ends last, of the last simulation."""
    i = 0
    for j in range(len(b.end)):
        if b.end[j] > b.end[i]:
            i = j
    count = 0
    while i >= 0 and count < len(walk.critical):
        walk.critical[count] = i
        count += 1
        before = b.previous[i]
        # The device was busy until it started; otherwise it waited for its last input.
        if before >= 0 and b.end[before] == b.start[i]:
            i = before
            continue
        latest, found = -1.0, -1
        for x in range(s.in_start[i], s.in_start[i + 1]):
            e = s.in_edge[x]
            if b.arrived[e] > latest:
                latest, found = b.arrived[e], s.producer[e]
        i = found
    walk.counts[CRITICAL] = count
