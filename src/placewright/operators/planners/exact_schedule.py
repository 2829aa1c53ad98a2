"""Exact latency of small problems over links.

The model of CP-SAT has placements and starts. x[g, d]: group g is on device d; operators on one
device do not overlap. With free links a reader starts no earlier than its tensor's arrival, for
each pair of devices that its producer and it can be on. With contended links transfers are
intervals as well, which do not overlap on their channel and come in the order in which their
producers end.

Every simulated schedule keeps these rules, under any dispatch: so the least makespan
is a lower bound on all plans. Times are whole numbers, durations rounded down: with starts rounded
down too, a - b >= d gives floor(a) - floor(b) >= floor(d), so that the bound stays one; ends are
known to 2 units then, by which the order on a channel is relaxed. Memory over time is not in the
model, what lives on a device is.

What alone takes longer than the schedule that is to be beaten, an operator on a device or a
transfer, is in no better one and not in the model: no number there is too large for the solver.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.costs import Groups, groups_of, linked
from placewright.operators.judge import OperatorJudgement, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.planners import HEFT, HEFT_CONTENDED
from placewright.operators.planners.sequences.search import dispatches
from placewright.operators.planners.trivial import Single
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap, pairwise_only
from placewright.planning.contract import Context, Planner, Proposal, proposal_of
from placewright.solvers.programs import require, run_cp_sat

RESOLUTION = 2.0**26
"""Whole numbers up to the makespan of the start: a path of 60 loses less than 1e-6 of it. Not
more: see `pipelines.contiguous`."""
MOST_PAIRS = 20_000
"""Pairs of transfers on a channel whose order is in the model; with more it is left open."""

ENOUGH = 5e-7
"""Relative gap at which the solver ends: less than what counts as proved."""


@final
@dataclass(frozen=True, slots=True)
class ExactSchedule:
    """Optimal latency of some tens of operators, by CP-SAT.

    The start is the plan at hand, or the best of HEFT and single devices. The solver's placement is
    simulated in the order of its starts under every dispatch rule, and the best is kept. Where
    links are contended, they are taken for free first: no plan is worse then. With free links and
    room for every tensor an in-order simulation is no later than the solver's schedule, so a proof
    of the solver is a proof for the plan. With contended links the judge sends as soon as it can,
    where the solver may have meant to wait, and where memory is short the plan may not fit: then
    the bound holds, and the plan may be above it.

    Exponential. Deterministic where it ends before the deadline. With a plan at hand (in ``auto``)
    it takes at most half of the time that is left.

    `operators`: larger problems are not taken.
    `workers`: strategies of the solver, which take turns.
    """

    name: ClassVar[str] = "exact-schedule"
    operators: int = 60
    workers: int = 1

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Latency over links, computing and sending at the same time, few operators."""
        if problem.objective is not Objective.LATENCY or problem.overlap is not Overlap.PARALLEL:
            return "not the latency of operators and transfers side by side"
        if problem.n > self.operators:
            return f"proves latency over links up to {self.operators} operators, not {problem.n}"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan, with what was proved.

        Raises `InfeasibleError` (no plan fits) or `MissingDependencyError` (OR-tools is not
        installed).
        """
        require("ortools", "proofs of latency")
        best = _start(problem, context)
        if best is None:
            raise InfeasibleError(
                "no plan that fits was found to start from",
                where=problem.name,
                hint="raise a memory limit, or try --planner auto",
            )
        if best[1].value <= 0.0:
            return Proposal(best[0])
        left = context.remaining_s() * (0.5 if context.incumbent is not None else 1.0)
        until = time.perf_counter() + left
        bound, stopped = 0.0, False
        for relaxed, share in _relaxations(problem):
            until_now = time.perf_counter() + share * (until - time.perf_counter())
            best, claim, stopped = self._solve(relaxed, problem, best, context.seed, until_now)
            bound = max(bound, claim)
            if stopped or bound >= best[1].value * (1 - ENOUGH):
                break
        return Proposal(best[0], min(bound, best[1].value), interrupted=stopped)

    def _solve(
        self,
        relaxed: OperatorProblem,
        problem: OperatorProblem,
        best: tuple[OperatorPlan, OperatorJudgement],
        seed: int,
        deadline_s: float,
    ) -> tuple[tuple[OperatorPlan, OperatorJudgement], float, bool]:
        """A better plan if one is found, a lower bound, and whether Ctrl-C interrupted it."""
        plan, judgement = best
        groups = groups_of(problem)
        m = _schedule_model(relaxed, groups, judgement.value)
        _hint(m, groups, plan.placement, (judgement.op_start_s, judgement.op_end_s))
        answer = run_cp_sat(
            m.model, seed=seed, deadline_s=deadline_s, workers=self.workers, gap=ENOUGH
        )
        if answer.values is not None:
            on = [_where(row, answer.values) for row in m.on]
            start = np.array([answer.values(x) for x in m.start])
            best = _better(problem, best, np.array(on)[groups.group], start)
        return best, answer.bound / m.scale, answer.interrupted


def _relaxations(problem: OperatorProblem) -> list[tuple[OperatorProblem, float]]:
    """Problems to solve one after another, with the share of the remaining time of each."""
    if problem.links is Links.FREE:
        return [(problem, 1.0)]
    return [(problem.replace(links=Links.FREE), 0.4), (problem, 1.0)]


def _where(row: list[Any], values: Any) -> int:
    """The device that the solver chose for a group."""
    return next(d for d, x in enumerate(row) if x is not None and values(x))


def _start(
    problem: OperatorProblem, context: Context
) -> tuple[OperatorPlan, OperatorJudgement] | None:
    """The incumbent, or the best feasible plan of some quick planners."""
    quick: list[Planner] = [HEFT, HEFT_CONTENDED, *map(Single, problem.device_names)]
    plans = [] if context.incumbent is None else [context.incumbent]
    for planner in quick if not plans else ():
        if planner.unsupported_reason(problem) is None:
            try:
                plans.append(proposal_of(planner(problem, context)).plan)
            except InfeasibleError:
                continue
    return min(_judged(problem, plans), key=lambda entry: entry[1].value, default=None)


def _judged(
    problem: OperatorProblem, plans: list[OperatorPlan]
) -> list[tuple[OperatorPlan, OperatorJudgement]]:
    """Feasible plans with their judgements."""
    found = []
    for plan in plans:
        try:
            judgement = judge(problem, plan)
        except InfeasibleError:
            continue
        if judgement.feasible:
            found.append((plan, judgement))
    return found


def _better(
    problem: OperatorProblem,
    best: tuple[OperatorPlan, OperatorJudgement],
    place: IntArray,
    start: IntArray,
) -> tuple[OperatorPlan, OperatorJudgement]:
    """The best of `best` and the solver's schedule, simulated under every dispatch rule."""
    # Rounded starts may be equal where one operator reads the other: then producers come first.
    order = np.lexsort((np.argsort(problem.topology.order), start))
    tried = [best, *_judged(problem, dispatches(place, order))]
    return min(tried, key=lambda entry: entry[1].value)


@dataclass(frozen=True, slots=True, eq=False)
class _ScheduleModel:
    """The CP-SAT model; on[g][d] is ``None`` where a group may not be."""

    model: Any
    on: list[list[Any]]
    start: list[Any]
    end: list[Any]
    makespan: Any
    scale: float


def _schedule_model(problem: OperatorProblem, groups: Groups, top_s: float) -> _ScheduleModel:
    """The model of all schedules that take at most `top_s` seconds, which is above zero."""
    from ortools.sat.python import cp_model

    model, scale = cp_model.CpModel(), RESOLUTION / top_s
    allowed = groups.allowed & ~_too_long(problem, groups, top_s)
    most = int(RESOLUTION) + 1
    m = _ScheduleModel(
        model,
        [[model.new_bool_var("") if ok else None for ok in row] for row in allowed],
        [model.new_int_var(0, most, "") for _ in range(problem.n)],
        [model.new_int_var(0, most, "") for _ in range(problem.n)],
        model.new_int_var(0, most, ""),
        scale,
    )
    for row in m.on:
        model.add_exactly_one(x for x in row if x is not None)
    _compute(problem, groups, m)
    _memory(problem, groups, m)
    if problem.links is Links.FREE:
        _arrivals(problem, groups, m)
    else:
        _transfers(problem, groups, m)
    model.minimize(m.makespan)
    return m


def _too_long(p: OperatorProblem, groups: Groups, top_s: float) -> BoolArray:
    """Shape (groups, m): whether some operator of the group takes more than `top_s` there."""
    some = np.zeros(groups.allowed.shape, dtype=np.bool_)
    np.logical_or.at(some, groups.group, p.compute_s > top_s)
    return some


def _compute(p: OperatorProblem, groups: Groups, m: _ScheduleModel) -> None:
    """One operator at a time on each device, all of them within the makespan."""
    busy: list[list[Any]] = [[] for _ in range(p.m)]
    work: list[list[Any]] = [[] for _ in range(p.m)]
    for i in range(p.n):
        for d, x in enumerate(m.on[groups.group[i]]):
            if x is None:
                continue
            took = int(p.compute_s[i, d] * m.scale)
            busy[d].append(m.model.new_optional_interval_var(m.start[i], took, m.end[i], x, ""))
            work[d].append(took * x)
        m.model.add(m.makespan >= m.end[i])
    for d in range(p.m):
        m.model.add_no_overlap(busy[d])
        # Implied by the intervals, which do not overlap, but propagated at once.
        m.model.add(sum(work[d]) <= m.makespan)


def _memory(p: OperatorProblem, groups: Groups, m: _ScheduleModel) -> None:
    for d in range(p.m):
        limit = p.memory_bytes[d]
        if np.ceil(p.resident_bytes).sum() > limit:
            need = np.bincount(groups.group, np.ceil(p.resident_bytes)).astype(np.int64).tolist()
            held = sum(b * m.on[g][d] for g, b in enumerate(need) if m.on[g][d] is not None)
            m.model.add(held <= int(limit))


def _took(p: OperatorProblem, k: int, scale: float) -> FloatArray:
    """Shape (m, m), whole units of tensor k from device to device; zero within one.

    ``inf`` without a link, or where it takes longer than all may.
    """
    pair = linked(p)
    seconds = np.where(pair, p.latency_s, 0.0)
    seconds = seconds + p.tensor_bytes[k] * np.where(pair, p.seconds_per_byte, 0.0)
    took: FloatArray = np.floor(seconds * scale)
    # Forbidden pairs, not numbers: larger than any schedule that counts.
    took[~pair | (took > RESOLUTION)] = np.inf
    np.fill_diagonal(took, 0.0)
    return took


def _readers(p: OperatorProblem, k: int) -> list[int]:
    return sorted({*p.readers(k).tolist()})


def _arrivals(p: OperatorProblem, groups: Groups, m: _ScheduleModel) -> None:
    """Readers wait for their tensors."""
    for k in range(p.t):
        i, took = int(p.tensor_producer[k]), _took(p, k, m.scale)
        home = m.on[groups.group[i]]
        for j in _readers(p, k):
            m.model.add(m.start[j] >= m.end[i])
            if groups.group[i] == groups.group[j]:
                continue
            for d, there in enumerate(m.on[groups.group[j]]):
                for s, here in enumerate(home):
                    if s == d or here is None or there is None:
                        continue
                    if np.isinf(took[s, d]):
                        m.model.add_bool_or([~here, ~there])
                    elif took[s, d] > 0:
                        m.model.add(m.start[j] >= m.end[i] + int(took[s, d])).only_enforce_if(
                            here, there
                        )


def _transfers(p: OperatorProblem, groups: Groups, m: _ScheduleModel) -> None:
    """Transfers of one channel do not overlap; readers wait for them."""
    most = int(RESOLUTION) + 1
    channel: list[list[tuple[Any, Any, Any, Any]]] = [[] for _ in p.channel_names]
    for k in range(p.t):
        i, took, readers = int(p.tensor_producer[k]), _took(p, k, m.scale), _readers(p, k)
        home = m.on[groups.group[i]]
        for j in readers:
            m.model.add(m.start[j] >= m.end[i])
        others = [j for j in readers if groups.group[j] != groups.group[i]]
        for d in range(p.m):
            there = [(j, m.on[groups.group[j]][d]) for j in others]
            there = [(j, x) for j, x in there if x is not None]
            begin, done = (m.model.new_int_var(0, most, "") for _ in range(2))
            for s, here in enumerate(home):
                if s == d or here is None or not there:
                    continue
                if np.isinf(took[s, d]):
                    for _, x in there:
                        m.model.add_bool_or([~here, ~x])
                    continue
                # Wanted where the producer is on s and some reader on d. The solver may send
                # without need, which only lengthens schedules: the bound stays one.
                sent = m.model.new_bool_var("")
                m.model.add_implication(sent, here)
                for j, x in there:
                    m.model.add_bool_or([~here, ~x, sent])
                    m.model.add(m.start[j] >= done).only_enforce_if(sent, x)
                span = m.model.new_optional_interval_var(begin, int(took[s, d]), done, sent, "")
                m.model.add(begin >= m.end[i]).only_enforce_if(sent)
                channel[p.channel[s, d]].append((span, sent, begin, m.end[i]))
    for moves in channel:
        m.model.add_no_overlap([span for span, *_ in moves])
    if sum(len(moves) ** 2 for moves in channel) <= 2 * MOST_PAIRS:
        for moves in channel:
            _in_turn(m, moves)


def _in_turn(m: _ScheduleModel, moves: list[tuple[Any, Any, Any, Any]]) -> None:
    """First come, first served."""
    for (_, a, a_begin, a_ready), (_, b, b_begin, b_ready) in combinations(moves, 2):
        # Of one producer: which goes first is the order of their readers, and is left open.
        if a_ready is b_ready:
            continue
        first = m.model.new_bool_var("")
        m.model.add(a_begin <= b_begin).only_enforce_if(a, b, first)
        # Ends are known to 2 units (see above): the order of requests is not known more exactly.
        m.model.add(a_ready <= b_ready + 2).only_enforce_if(a, b, first)
        m.model.add(b_begin <= a_begin).only_enforce_if(a, b, ~first)
        m.model.add(b_ready <= a_ready + 2).only_enforce_if(a, b, ~first)


def _hint(
    m: _ScheduleModel, groups: Groups, place: IntArray, spans: tuple[FloatArray, FloatArray]
) -> None:
    """Give the solver a schedule as a hint: where groups are, when operators start and end."""
    for g, i in enumerate(groups.first.tolist()):
        for d, x in enumerate(m.on[g]):
            if x is not None:
                m.model.add_hint(x, int(place[i]) == d)
    for variables, times in zip((m.start, m.end), spans, strict=True):
        for x, time_s in zip(variables, times.tolist(), strict=True):
            m.model.add_hint(x, int(time_s * m.scale))
