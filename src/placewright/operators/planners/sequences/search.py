"""Annealing on sequences: prepared problem, best plan, chunks of moves, cooling, deadline."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from threading import Event
from typing import Any, NamedTuple

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.operators.costs import Costs, Groups, groups_of, kernel_costs, linked
from placewright.operators.judge import OperatorJudge, OperatorJudgement
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.annealing import group_members
from placewright.operators.planners.lists.insertion import optimistic_costs
from placewright.operators.planners.placements import (
    COLDEST,
    Score,
    Start,
    mean_operator_s,
    score_plan,
)
from placewright.operators.planners.sequences.decode import (
    BEST,
    TEMPERATURE,
    SequenceInstance,
    SequenceState,
    start_state,
)
from placewright.operators.planners.sequences.moves import anneal
from placewright.operators.planners.starts import LIST_SCHEDULERS
from placewright.operators.planners.trivial import Single
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap
from placewright.planning.contract import Context, Planner, proposal_of


@dataclass(slots=True)
class SearchState:
    """The problem laid out, and the best plan so far.

    `orders` is ``None`` where sequences make no sense: serial, throughput, missing links, or
    memories that sequences have turned out not to keep. `exact` says that decoding them is what
    the judge does: no memory is limited. `judging_s`: the time of the last judgement.
    """

    problem: OperatorProblem
    context: Context
    judge: OperatorJudge
    groups: Groups
    best: Start
    orders: OrderSearch | None = None
    exact: bool = False
    judging_s: float = 0.0
    begun_s: float = field(default_factory=time.perf_counter)

    def done(self) -> bool:
        """Whether the deadline has passed or the bound is reached."""
        closed = self.best.score.over_bytes == 0 and (self.best.score.value_s <= self.context.bound)
        return closed or self.context.remaining_s() <= 0

    def offer(self, plan: OperatorPlan) -> Score:
        """Judge a plan; it becomes the best one if its value is lower."""
        began_s = time.perf_counter()
        start = score_plan(self.judge, plan)
        self.judging_s = time.perf_counter() - began_s
        if start.score < self.best.score:
            self.best = start
        return start.score

    def report(self, what: str) -> None:
        """Report progress with the best value so far."""
        self.context.progress(
            what=what,
            value=self.best.score.value_s if self.best.score.over_bytes == 0 else math.inf,
            bound=self.context.bound,
            elapsed_s=time.perf_counter() - self.begun_s,
        )


def start_search_state(problem: OperatorProblem, context: Context) -> SearchState:
    """From the incumbent or, without one, the best list schedule or single device.

    Raises `InfeasibleError` (no start has a link for every tensor).
    """
    judge, groups = OperatorJudge(problem), groups_of(problem)
    best = _first(problem, judge, context)
    parallel = problem.overlap is Overlap.PARALLEL
    sequences = parallel and problem.objective is Objective.LATENCY and problem.m > 1
    orders = OrderSearch(problem, groups) if sequences and fully_linked(problem) else None
    exact = not np.isfinite(problem.memory_bytes).any()
    return SearchState(problem, context, judge, groups, best, orders, exact)


def _first(problem: OperatorProblem, judge: OperatorJudge, context: Context) -> Start:
    """The incumbent, or the best of the list schedules and single devices."""
    if context.incumbent is not None:
        return score_plan(judge, context.incumbent)
    planners: list[Planner] = [
        *LIST_SCHEDULERS,
        *(Single(device) for device in problem.device_names),
    ]
    found = []
    for planner in planners:
        if planner.unsupported_reason(problem) is not None:
            continue
        try:
            found.append(score_plan(judge, proposal_of(planner(problem, context)).plan))
        except InfeasibleError:
            continue  # no link for some tensor: another start may still have a way
    if not found:
        raise InfeasibleError(
            "no plan found to start from", where=problem.name, hint="add links, or drop pins"
        )
    return min(found, key=lambda start: start.score)


def dispatches(place: IntArray, sequence: IntArray) -> list[OperatorPlan]:
    """A sequence under every dispatch rule: in order, by priority, and the default order."""
    return [
        OperatorPlan(place, sequence, Dispatch.IN_ORDER),
        OperatorPlan(place, sequence),
        OperatorPlan(place),
    ]


CHUNK = 256
"""Moves in the whole sequence between two looks at the clock and at the critical path."""

WHOLE = 128
"""Operators up to which moves are tried in the whole sequence, and not in windows."""

DECODED = 2_000_000
"""Operators that may be decoded between two looks at the clock."""

LOOK_S = 0.05
"""About from one look at the clock to the next, where that is no matter to the walk."""


class SequenceWindows(NamedTuple):
    """Windows of a search.

    Attributes
    ----------
    largest
        Positions in the largest one.
    moves
        Tried in each.
    late
        Estimate transfers from before a window; see `sequences.decode`. A move is cheap then,
        however far away its operator's producers are.
    """

    largest: int = 256
    moves: int = 512
    late: bool = False

    def work(self, n: int) -> float:
        """Operators that a move has decoded, about: its share of opening its window included."""
        return self.largest / 4 + 3 * n / self.moves


USUAL = SequenceWindows()


@dataclass(frozen=True, slots=True, eq=False)
class Sequenced:
    """A state of the search: a topological sequence, a placement and the decoder's makespan."""

    sequence: IntArray
    place: IntArray
    value_s: float


def start_order(judgement: OperatorJudgement) -> IntArray:
    """Operators by simulated start time, which is a topological order."""
    problem = judgement.problem
    position = np.argsort(problem.topology.order)
    return np.lexsort((position, judgement.op_end_s, judgement.op_start_s)).astype(np.int64)


class OrderSearch:
    """A problem laid out for annealing on sequences.

    Only for problems in which every pair of devices is linked; memory is not looked at.
    """

    __slots__ = ("channels", "instance", "problem", "spread", "windows")

    def __init__(
        self, problem: OperatorProblem, groups: Groups, windows: SequenceWindows = USUAL
    ) -> None:
        self.problem, self.windows = problem, windows
        self.spread = _spread(problem, groups, windows.largest)
        self.channels = len(problem.channel_names)
        self.instance = _instance(problem, kernel_costs(problem), groups, windows.late)

    def improve(
        self,
        sequence: IntArray,
        place: IntArray,
        *,
        moves: int,
        heat: float,
        seed: int,
        deadline_s: float = math.inf,
        stop: Event | None = None,
    ) -> Sequenced:
        """The best state found on a walk of `moves` moves.

        `heat`: first temperature, in mean operator times. It falls to a hundredth along the walk.
        `stop`: set by another thread to end the walk.
        """
        f = self.instance
        state = start_state(f, self.problem.t, self.channels, sequence, place, seed)
        state.score[TEMPERATURE] = heat * mean_operator_s(self.problem)
        cooling = COLDEST ** (1.0 / max(1, moves))
        left, windows, move_s = moves, 1, 0.0
        while left > 0 and (now_s := time.perf_counter()) < deadline_s:
            if stop is not None and stop.is_set():
                break
            # A chunk is compiled: the clock and Ctrl-C are looked at between chunks only.
            most = left if move_s * left < deadline_s - now_s else (deadline_s - now_s) / move_s
            done = self._chunk(state, max(1, int(most)), cooling, windows)
            took_s = time.perf_counter() - now_s
            # Windows differ by ten times in what their moves cost.
            left, move_s = left - done, max(took_s / done, move_s / 2)
            windows = max(1, windows // 2) if took_s > LOOK_S else 2 * windows
        return Sequenced(
            state.best_sequence.copy(), state.best_place.copy(), float(state.score[BEST])
        )

    def moves(self, work: float) -> int:
        """How many moves decode about `work` operators."""
        n, windows, whole = self.problem.n, self.windows.work(self.problem.n), self.problem.n / 2
        if n <= WHOLE:
            return max(1, int(work / whole))
        both = work / 2 if self.spread else work
        return max(1, int(both / windows + (both / whole if self.spread else 0)))

    def _chunk(self, state: SequenceState, left: int, cooling: float, windows: int) -> int:
        """One chunk of moves, in so many windows where none of them is whole; the number tried."""
        n = self.problem.n
        if n <= WHOLE:
            moves = min(left, CHUNK)
            anneal(self.instance, state, 0, 0, moves, cooling)
            return moves
        each, work = min(left, self.windows.moves), self.windows.work(n)
        most = min(left // each, int(DECODED / (each * work)))
        # Moves in windows are the same however they are cut into chunks; others are not.
        windows = max(1, most if self.spread else min(most, windows))
        anneal(self.instance, state, windows, min(self.windows.largest, n), each, cooling)
        moves = windows * each
        if self.spread:
            whole = max(1, int(moves * work / (n / 2)))
            anneal(self.instance, state, 0, 0, whole, cooling)
            moves += whole
        return moves


def _spread(problem: OperatorProblem, groups: Groups, largest: int) -> bool:
    """Whether some colocation group spans more positions than a window."""
    position = np.argsort(problem.topology.order)
    first, last = np.full(len(groups.first), problem.n), np.zeros(len(groups.first), dtype=np.int64)
    np.minimum.at(first, groups.group, position)
    np.maximum.at(last, groups.group, position)
    return bool((last - first >= largest / 2).any())


def fully_linked(problem: OperatorProblem) -> bool:
    """Whether there is a link for every ordered pair of devices."""
    return bool((linked(problem) | np.eye(problem.m, dtype=np.bool_)).all())


def _instance(
    problem: OperatorProblem, costs: Costs, groups: Groups, late: bool
) -> SequenceInstance:
    n, m = problem.n, problem.m
    # Uses are listed by tensor; sorted stably by producer they stay by tensor, which rule C4 needs.
    made = problem.tensor_producer[problem.consumed]
    by_producer = np.argsort(made, kind="stable")
    group_start, members = group_members(groups.group, len(groups.allowed))
    off = ~np.eye(m, dtype=np.bool_)
    producer = costs.producer[costs.in_tensors]
    instance = SequenceInstance(
        contended=problem.links is Links.CONTENDED,
        late=late,
        compute_s=problem.compute_s.ravel(),
        in_start=costs.in_offsets,
        producer=producer,
        in_tensor=costs.in_tensors,
        in_bytes=problem.tensor_bytes[costs.in_tensors],
        tensor_producer=problem.tensor_producer,
        size_bytes=problem.tensor_bytes,
        out_start=np.searchsorted(made[by_producer], np.arange(n + 1)),
        reader=problem.consumers[by_producer],
        out_tensor=problem.consumed[by_producer],
        group=groups.group,
        group_start=group_start,
        members=members,
        allowed=groups.allowed,
        latency_s=np.where(off, problem.latency_s, 0.0).ravel(),
        seconds_per_byte=np.where(off, problem.seconds_per_byte, 0.0).ravel(),
        channel=costs.channel.ravel(),  # -1 within a device, whatever the problem has there
        tail_s=_tails(problem, costs),
    )
    parts: Any = (thawed(x) if isinstance(x, np.ndarray) else x for x in instance)
    return SequenceInstance(*parts)


def _tails(problem: OperatorProblem, costs: Costs) -> FloatArray:
    """Lower bound on the seconds from an operator's end to the makespan, over all placements."""
    least_s = problem.compute_s.min(axis=1, keepdims=True)
    return optimistic_costs(costs, least_s)[:, 0].copy()  # one device: nothing is sent
