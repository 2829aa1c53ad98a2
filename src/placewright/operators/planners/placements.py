"""Local search on placements: chunks of moves, cooling schedule, deadline.

Moves are compiled, and shared by every search on placements.
One move takes an operator, preferably a critical one, and sends it alone, with what is connected
to it, or with a stretch of the topological order to another device, or exchanges two groups.
The judge's simulator evaluates every move. Memory comes first: a move with fewer excess bytes is
accepted, one with more is not; among equals simulated annealing decides on the value.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_internal, njit_no_refcount
from placewright.operators.costs import Groups
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.annealing import draw, group_members
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.simulation.fast import UNSURE, find_copies, offsets_of
from placewright.operators.simulation.fast_state import FastState
from placewright.operators.simulation.inputs import Mode, default_order
from placewright.operators.simulation.rounds import Rounds, period
from placewright.operators.simulation.scores import score
from placewright.operators.sizes import home_bytes

CHUNK = 48
"""Moves between two looks at the clock and at the critical path."""

BLOCK = 4096
"""Placements that are scored together."""

COLDEST = 1e-2
"""The last temperature, as a share of the first."""


class Score(NamedTuple):
    """Bytes over the memories first, then seconds: less is better."""

    over_bytes: float
    value_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """A placement with its score; `order`, `dispatch` and `call` as in a plan."""

    place: IntArray
    score: Score
    order: IntArray | None = None
    dispatch: Dispatch = Dispatch.READY
    call: IntArray | None = None

    def plan(self) -> OperatorPlan:
        """As a plan."""
        return OperatorPlan(self.place, self.order, self.dispatch, self.call)


def score_all(judge: OperatorJudge, places: list[IntArray]) -> list[Start]:
    """Judge placements without an order; best first."""
    if not places:
        return []
    values, over = judge.many(np.stack(places))
    scores = [Score(float(o), float(v)) for v, o in zip(values, over, strict=True)]
    return [Start(p, s) for p, s in zip(places, scores, strict=True)]


def score_plan(judge: OperatorJudge, plan: OperatorPlan) -> Start:
    """Judge a plan with its order.

    Raises `InfeasibleError`: a tensor has no link.
    """
    judgement = judge(plan)
    score = Score(float(judgement.violation_bytes), float(judgement.value))
    return Start(plan.placement, score, plan.order, plan.dispatch, plan.call)


def improve(
    judge: OperatorJudge,
    groups: Groups,
    start: Start,
    *,
    moves: int,
    heat: float,
    seed: int,
    deadline_s: float = math.inf,
) -> Start:
    """The best placement found on a walk of about `moves` moves from `start`.

    Where there are no more placements than moves, the best of all of them.

    `heat`: first temperature, in mean operator times. It falls to a hundredth along the walk.
    """
    with np.errstate(over="ignore"):  # infinitely many, as good as
        placements = np.prod(groups.allowed.sum(axis=1), dtype=np.float64)
    if placements <= moves:
        return _best_of_all(judge, groups, start, deadline_s)
    instance = _instance(judge, groups, start)
    rounds, load_s = _asked(judge)
    score = (start.score.value_s, start.score.over_bytes)
    walk = begin(len(groups.allowed), start.place, score, seed)
    walk.score[TEMPERATURE] = heat * mean_operator_s(judge.problem)
    cooling = COLDEST ** (1.0 / max(1, moves))
    while walk.counts[EVALUATED] < moves and time.perf_counter() < deadline_s:
        done = int(walk.counts[EVALUATED])
        list_critical(instance, judge, walk, load_s)
        count = min(CHUNK, moves - done)
        if not anneal_moves(instance, rounds, load_s, walk, count, cooling):
            rounds = judge.rounds
            anneal_moves(instance, rounds, load_s, walk, count, cooling)
        # Only the simulation of `list_critical` was counted: no move changes anything any more.
        if walk.counts[EVALUATED] <= done + 1:
            break
    best = Score(float(walk.score[BEST_OVER]), float(walk.score[BEST_VALUE]))
    return Start(walk.best.copy(), best, start.order, start.dispatch)


def _asked(judge: OperatorJudge) -> tuple[Rounds | None, FloatArray]:
    """What moves are scored with beside the fast simulator, as `run_many` takes it."""
    load_s = judge.load_scratch()
    rounds = judge.rounds if len(load_s) or judge.mode().serial else None
    return rounds, load_s


def _best_of_all(judge: OperatorJudge, groups: Groups, start: Start, deadline_s: float) -> Start:
    """The start, or the first of the placements that are best under its order, if it is better."""
    devices, best = [np.flatnonzero(row) for row in groups.allowed], start
    # Those with a single device have no digit: NumPy counts in at most 64 of them.
    free = [g for g, each in enumerate(devices) if len(each) != 1]
    single = np.array([each[0] if len(each) else 0 for each in devices])
    sizes = [len(devices[g]) for g in free]
    count = math.prod(sizes)
    for first in range(0, count, BLOCK):
        if time.perf_counter() >= deadline_s:
            break
        block = np.arange(first, min(first + BLOCK, count))
        columns = np.tile(single, (len(block), 1))
        for g, digit in zip(free, np.unravel_index(block, sizes) if free else (), strict=True):
            columns[:, g] = devices[g][digit]
        places = columns[:, groups.group]
        values, over = judge.many(places, start.order, start.dispatch)
        k = np.lexsort((values, over))[0]
        score = Score(float(over[k]), float(values[k]))
        if score < best.score:
            best = Start(places[k], score, start.order, start.dispatch)
    return best


def mean_operator_s(problem: OperatorProblem) -> float:
    """Mean run time over operators and the devices that can run them."""
    return float(problem.compute_s[np.isfinite(problem.compute_s)].mean())


def _instance(judge: OperatorJudge, groups: Groups, start: Start) -> PlacementInstance:
    problem = judge.problem
    group_start, members = group_members(groups.group, len(groups.allowed))
    neighbour_start, neighbours = _neighbours(problem)
    return PlacementInstance(
        fast=judge.state,
        mode=judge.mode(start.dispatch, memory=bool(np.isfinite(problem.memory_bytes).any())),
        group=groups.group,
        group_start=group_start,
        members=members,
        neighbour_start=neighbour_start,
        neighbours=neighbours,
        allowed=groups.allowed,
        topological=problem.topology.order,
        position=np.argsort(problem.topology.order),
        order=default_order(problem) if start.order is None else thawed(start.order),
    )


def _neighbours(problem: OperatorProblem) -> tuple[IntArray, IntArray]:
    """CSR: producers and consumers of every operator, by number, each once per tensor."""
    producer = problem.tensor_producer[problem.consumed]
    own = np.concatenate([producer, problem.consumers])
    other = np.concatenate([problem.consumers, producer])
    by = np.lexsort((other, own))
    return np.searchsorted(own[by], np.arange(problem.n + 1)), other[by]


def operator_bytes(problem: OperatorProblem) -> FloatArray:
    """Shape (n,): resident bytes and what an operator makes."""
    made = np.bincount(problem.tensor_producer, home_bytes(problem), problem.n)
    return problem.resident_bytes + made


VALUE, OVER, BEST_VALUE, BEST_OVER, TEMPERATURE = 0, 1, 2, 3, 4
"""Slots of `PlacementWalk.score`."""

RANDOM, CRITICAL, MOVED, EVALUATED, LEFT, IDLE = range(6)
"""Slots of `PlacementWalk.counts`: random state, lengths of the two lists, placements evaluated,
moves of a chunk that are still to be evaluated, and draws in it that changed nothing."""


@by_reference
class PlacementInstance(NamedTuple):
    """The problem as moves read it.

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

    fast: FastState
    mode: Mode
    group: IntArray
    group_start: IntArray
    members: IntArray
    neighbour_start: IntArray
    neighbours: IntArray
    allowed: BoolArray
    topological: IntArray
    position: IntArray
    order: IntArray


@by_reference
class PlacementWalk(NamedTuple):
    """State of a search: current and best placement, their scores, and scratch lists."""

    place: IntArray
    best: IntArray
    score: FloatArray
    counts: IntArray
    critical: IntArray
    moved: IntArray
    moved_from: IntArray
    seen: BoolArray


def begin(groups: int, place: IntArray, score: tuple[float, float], seed: int) -> PlacementWalk:
    """A walk that starts at `place` with its score: value, excess bytes."""
    n, (value, over) = len(place), score
    walk = PlacementWalk(
        place=place.copy(),
        best=place.copy(),
        score=np.array([value, over, value, over, np.inf]),
        counts=np.zeros(6, dtype=np.int64),
        critical=np.zeros(2 * n, dtype=np.int64),
        moved=np.zeros(groups, dtype=np.int64),
        moved_from=np.zeros(groups, dtype=np.int64),
        seen=np.zeros(groups, dtype=np.bool_),
    )
    walk.counts[RANDOM] = (seed * 2 + 1) & 0x7FFFFFFF
    walk.counts[EVALUATED] = 1
    return walk


@njit_no_refcount
def anneal_moves(
    s: PlacementInstance,
    rounds: Rounds | None,
    load_s: FloatArray,
    walk: PlacementWalk,
    evaluations: int,
    cooling: float,
) -> bool:
    """Evaluate `evaluations` moves; the temperature is multiplied by `cooling` after each.

    `rounds`, `load_s`: see `run_many`. Without `rounds` it returns False where the fast simulator
    is unsure: that move is taken back, as if it had not been drawn; the next call goes on there.
    """
    if walk.counts[LEFT] == 0:
        walk.counts[LEFT], walk.counts[IDLE] = evaluations, 0
    while walk.counts[LEFT] > 0 and walk.counts[IDLE] < 100 * evaluations:
        drawn = walk.counts[RANDOM]
        if not _propose(s, walk):
            walk.counts[IDLE] += 1
            continue
        value, excess = score(s.fast, rounds, s.mode, walk.place, s.order, load_s)
        if value == UNSURE:
            _undo(s, walk)
            walk.counts[RANDOM] = drawn
            return False
        walk.counts[EVALUATED] += 1
        walk.counts[LEFT] -= 1
        over = np.inf if value == np.inf else float(excess)
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
    walk.counts[LEFT] = 0
    return True


@njit_internal
def _accepted(walk: PlacementWalk, value: float, over: float) -> bool:
    if over != walk.score[OVER]:
        return bool(over < walk.score[OVER])
    worse = value - walk.score[VALUE]
    if worse <= 0:
        return True
    heat = walk.score[TEMPERATURE]
    # ``nan`` (both values ``inf``) compares false: such a move is refused.
    return bool(heat > 0 and draw(walk.counts, RANDOM, 1 << 20) / (1 << 20) < np.exp(-worse / heat))


@njit_internal
def _propose(s: PlacementInstance, walk: PlacementWalk) -> bool:
    """Change the current placement; False if nothing changed."""
    walk.counts[MOVED] = 0
    i = _pick(s, walk)
    here = walk.place[i]
    there = _target(s, walk, i)
    # Nothing was evaluated: such draws count as idle, and do not cool the walk.
    if there == here or not s.allowed[s.group[i], there]:
        return False
    kind = draw(walk.counts, RANDOM, 10)
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


@njit_internal
def _pick(s: PlacementInstance, walk: PlacementWalk) -> int:
    if walk.counts[CRITICAL] > 0 and draw(walk.counts, RANDOM, 3) > 0:
        return int(walk.critical[draw(walk.counts, RANDOM, walk.counts[CRITICAL])])
    return draw(walk.counts, RANDOM, len(walk.place))


@njit_internal
def _target(s: PlacementInstance, walk: PlacementWalk, i: int) -> int:
    """A neighbour's device half of the time, else any."""
    first, last = s.neighbour_start[i], s.neighbour_start[i + 1]
    if last > first and draw(walk.counts, RANDOM, 2) == 0:
        return int(walk.place[s.neighbours[first + draw(walk.counts, RANDOM, last - first)]])
    return draw(walk.counts, RANDOM, s.allowed.shape[1])


@njit_internal
def _send(s: PlacementInstance, walk: PlacementWalk, g: int, there: int) -> None:
    """Move a group once, if it may go there and is not there."""
    here = walk.place[s.members[s.group_start[g]]]
    # `seen`: a group is recorded once per move, with the device that it had before.
    if walk.seen[g] or here == there or not s.allowed[g, there]:
        return
    walk.seen[g] = True
    walk.moved[walk.counts[MOVED]], walk.moved_from[walk.counts[MOVED]] = g, here
    walk.counts[MOVED] += 1
    for a in range(s.group_start[g], s.group_start[g + 1]):
        walk.place[s.members[a]] = there


@njit_internal
def _undo(s: PlacementInstance, walk: PlacementWalk) -> None:
    for x in range(walk.counts[MOVED]):
        g = walk.moved[x]
        for a in range(s.group_start[g], s.group_start[g + 1]):
            walk.place[s.members[a]] = walk.moved_from[x]


@njit_internal
def _send_stretch(s: PlacementInstance, walk: PlacementWalk, i: int, there: int) -> None:
    """Move all operators on the device of `i` within a stretch of the topological order."""
    here, n = walk.place[i], len(walk.place)
    length = 2
    # Lengths by doubling: short stretches often, half of the order sometimes.
    while length < n // 2 and draw(walk.counts, RANDOM, 4) > 0:
        length *= 2
    first = s.position[i] - draw(walk.counts, RANDOM, length)
    for x in range(max(0, first), min(n, first + length)):
        j = s.topological[x]
        if walk.place[j] == here:
            _send(s, walk, s.group[j], there)


@njit_internal
def _send_connected(s: PlacementInstance, walk: PlacementWalk, i: int, there: int) -> None:
    """Move groups reached from `i` over tensors within its device, nearest first."""
    here, limit = walk.place[i], 2
    while limit < len(walk.moved) // 2 and draw(walk.counts, RANDOM, 3) > 0:
        limit *= 2
    _send(s, walk, s.group[i], there)
    # `moved` is the queue of a breadth-first search and the log for `_undo` at once.
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


@njit_internal
def _exchange(s: PlacementInstance, walk: PlacementWalk, i: int, there: int) -> None:
    """Exchange the group of `i` with one group from device `there`."""
    here, n = walk.place[i], len(walk.place)
    start = draw(walk.counts, RANDOM, n)
    for x in range(n):
        j = (start + x) % n
        if walk.place[j] == there and s.allowed[s.group[j], here]:
            _send(s, walk, s.group[i], there)
            _send(s, walk, s.group[j], here)
            return


def list_critical(
    s: PlacementInstance, judge: OperatorJudge, walk: PlacementWalk, load_s: FloatArray
) -> None:
    """List the critical path: from the last operator back along what each one waited for.

    Of a stream, which has no path, the operators of the device or channel with the largest load.
    `load_s`: see `run_many`.
    """
    walk.counts[CRITICAL] = 0
    walk.counts[EVALUATED] += 1
    state, rounds = judge.state, judge.rounds
    if len(load_s) and not s.mode.serial:
        period(state, rounds, s.mode, walk.place, load_s)
        found = _on_the_busiest(judge.problem, walk.place, load_s)
        walk.critical[: len(found)] = found
        walk.counts[CRITICAL] = len(found)
        return
    if judge.simulated(walk.place, s.order, s.mode._replace(memory=True)):
        end_s = (state.start_s + state.ops["took_s"])[: state.n]
        # Stable: numpy breaks ties by the instructions of the CPU otherwise, and plans with them.
        _follow_back(state, rounds, walk, end_s, np.argsort(end_s, kind="stable"))


def _on_the_busiest(p: OperatorProblem, place: IntArray, load_s: FloatArray) -> IntArray:
    """Operators on the device of the largest load, or at both ends of the tensors of a channel."""
    count = p.m if p.links is Links.FREE else len(load_s)
    busiest = int(load_s[:count].argmax())
    if busiest < p.m:
        return np.flatnonzero(place == busiest)
    source, target = p.consumed_from, p.consumers
    carried = p.channel[place[source], place[target]] == busiest - p.m
    return np.unique(np.concatenate([source[carried], target[carried]]))


@njit_no_refcount
def _follow_back(
    s: FastState, r: Rounds, walk: PlacementWalk, end_s: FloatArray, by_end: IntArray
) -> None:
    """`by_end` lists the operators by when they ended."""
    find_copies(s, offsets_of(s, 0), False)
    i, at = by_end[-1], s.n
    for size in range(s.n):
        walk.critical[size] = i
        walk.counts[CRITICAL] = size + 1
        start = s.start_s[i]
        if start <= 0.0:
            return
        # Starts only become earlier along the path: `at` goes through the list once.
        while at > 0 and end_s[by_end[at - 1]] >= start:
            at -= 1
        i = _blocker(s, r, walk.place, i, end_s, by_end, at)
        if i < 0:
            return


@njit_internal
def _blocker(
    s: FastState,
    r: Rounds,
    place: IntArray,
    i: int,
    end_s: FloatArray,
    by_end: IntArray,
    at: int,
) -> int:
    """What operator `i` waited for: its latest input or, if that came earlier, its device.

    Operators that ended when it started are in `by_end` from `at` on.
    """
    latest, source = -1.0, -1
    for a in range(r.in_start[i], r.in_start[i + 1]):
        edge = r.in_edge[a]
        p = int(s.tensors[s.edges[edge].tensor - 1].producer)
        # The copy that it reads came, or was made here.
        copy = s.copy[edge]
        arrival = s.arrival_s[copy] if copy < len(s.edges) else end_s[p]
        if arrival > latest:
            latest, source = arrival, p
    start = s.start_s[i]
    # Its inputs were there before: it waited for the operator that ended when it started.
    while latest < start and at < s.n and end_s[by_end[at]] == start:
        j = by_end[at]
        if place[j] == place[i] and j != i:
            return int(j)
        at += 1
    return source
