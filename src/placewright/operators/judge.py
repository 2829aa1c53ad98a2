"""Judge of wing 1: the only code that gives a plan its value.

What the numbers mean is specified in docs/reference/simulation.md, whose rules comments cite.
This file chooses the simulator, checks memory and contiguity, and explains what cannot be
simulated.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from placewright.errors import InfeasibleError, InputError
from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.operators.costs import break_of_chain, kernel_costs, linked
from placewright.operators.judgement import OperatorJudgement, Transfers, violation_words
from placewright.operators.plan import Dispatch, OperatorPlan, check_plan
from placewright.operators.problem import Communication, Links, Objective, OperatorProblem, Overlap
from placewright.operators.simulation import scores
from placewright.operators.simulation.fast import UNSURE
from placewright.operators.simulation.fast import simulate as simulate_fast
from placewright.operators.simulation.fast_state import (
    FastState,
    copied_arrays,
    copy_fast_state,
    make_fast_state,
)
from placewright.operators.simulation.inputs import (
    Mode,
    checked_batch,
    default_order,
    parts_of_batch,
)
from placewright.operators.simulation.loads import as_pipeline, is_pipeline
from placewright.operators.simulation.rounds import Rounds, make_rounds, period, simulate
from placewright.operators.simulation.star import judge_star, star_scores
from placewright.operators.sizes import room_bytes, whole_bytes

__all__ = ["OperatorJudge", "OperatorJudgement", "Transfers", "evaluate_many", "judge"]


def judge(problem: OperatorProblem, plan: OperatorPlan) -> OperatorJudgement:
    """Value, schedule, transfers and memory of a plan.

    Raises
    ------
    InputError
        The plan does not match the problem.
    InfeasibleError
        An operator on a device that cannot run it, a tensor between devices without a link, or an
        order that contradicts the graph.
    """
    check_plan(problem, plan)
    star = problem.communication is Communication.STAR
    return _with_rules(
        problem, plan, judge_star(problem, plan) if star else OperatorJudge(problem)(plan)
    )


def _with_rules(
    problem: OperatorProblem, plan: OperatorPlan, judgement: OperatorJudgement
) -> OperatorJudgement:
    """With the rules of pipelines and contiguity, which simulators do not know."""
    if problem.communication is not Communication.STAR and is_pipeline(problem):
        judgement = as_pipeline(judgement, plan)
    broken = break_of_chain(problem, judgement.placement) if problem.contiguous else ""
    if not broken:
        return judgement
    words = "; ".join(x for x in (judgement.violation, broken) if x)
    return replace(judgement, feasible=False, violation=words)


class OperatorJudge:
    """The simulators of a problem, laid out once and run many times.

    Not to be shared between threads.

    Attributes
    ----------
    state, rounds
        Of the simulators, for compiled searches: `state` is all that the fast one needs,
        ``simulate(judge.state, judge.rounds, judge.mode(), placement, order)`` is the one by
        rounds.
    by_rounds
        Whether that one has simulated what `state` says.
    """

    __slots__ = ("by_rounds", "problem", "rounds", "state")

    def __init__(self, problem: OperatorProblem) -> None:
        self.problem = problem
        costs = kernel_costs(problem)
        second_pass = problem.is_backward if problem.pipeline.diffmaxima else None
        self.state = make_fast_state(costs, len(problem.channel_names))
        self.rounds = make_rounds(costs, self.state, second_pass)
        self.by_rounds = True

    def mode(self, dispatch: Dispatch = Dispatch.READY, *, memory: bool = True) -> Mode:
        """What the problem asks the simulators for."""
        return Mode(
            contended=self.problem.links is Links.CONTENDED,
            serial=self.problem.overlap is Overlap.SERIAL,
            in_order=dispatch == Dispatch.IN_ORDER,
            memory=memory,
        )

    def load_scratch(self) -> FloatArray:
        """What kernels add up loads in, shape (m + channels,); empty where values are makespans."""
        p = self.problem
        throughput = p.objective is Objective.THROUGHPUT
        return np.zeros(p.m + len(p.channel_names) if throughput else 0)

    def __call__(self, plan: OperatorPlan) -> OperatorJudgement:
        """Judge a plan that `check_plan` has passed.

        Without the rules of pipelines and contiguity, which `judge` and `PreparedJudge` add.
        """
        if self.problem.communication is Communication.STAR:
            return judge_star(self.problem, plan)
        order = default_order(self.problem) if plan.order is None else thawed(plan.order)
        if not self.simulated(thawed(plan.placement), order, self.mode(plan.dispatch)):
            raise _refusal(self.problem, self.state, plan)
        return self.judgement(plan)

    def simulated(self, place: IntArray, order: IntArray, mode: Mode) -> bool:
        """Simulate a placement; False where it breaks one of the rules P1 to P3.

        By rounds where the fast simulator is unsure, and where one thing happens at a time. With
        `mode.memory` the state has all times.
        """
        self.by_rounds = (
            mode.serial or not UNSURE < simulate_fast(self.state, mode, place, order) < np.inf
        )
        return not self.by_rounds or bool(simulate(self.state, self.rounds, mode, place, order))

    def many(
        self,
        placements: npt.ArrayLike,
        order: npt.ArrayLike | None = None,
        dispatch: Dispatch = Dispatch.READY,
    ) -> tuple[FloatArray, IntArray]:
        """Value and violation of every row of `placements`; see `evaluate_many`."""
        p = self.problem
        if order is None and dispatch == Dispatch.IN_ORDER:  # kernels would read past no order
            raise InputError("in-order placements need an order", where=p.name)
        rows, fixed = checked_batch(p, placements, order)
        if p.communication is Communication.STAR:
            return star_scores(p, rows)
        mode = self.mode(dispatch, memory=_can_be_short(p))
        throughput = p.objective is Objective.THROUGHPUT
        value_s, over = self._scored(rows, fixed, mode, rounds=throughput or mode.serial)
        unsure = np.flatnonzero(value_s == UNSURE)
        if len(unsure):
            value_s[unsure], over[unsure] = self._scored(rows[unsure], fixed, mode, rounds=True)
        return value_s, over

    def _scored(
        self, rows: IntArray, order: IntArray, mode: Mode, *, rounds: bool
    ) -> tuple[FloatArray, IntArray]:
        """Scores of placements by the kernels, on several cores where there are many."""
        p = self.problem
        value_s, over = np.empty(len(rows)), np.zeros(len(rows), dtype=np.int64)

        def run(state: FastState, more: Rounds, part: slice) -> None:
            asked, load_s = more if rounds else None, self.load_scratch()
            scores.run_many(
                state, asked, mode, load_s, rows[part], order, value_s[part], over[part]
            )

        parts = parts_of_batch(len(rows), len(rows) * (p.n + len(p.consumers)))
        if len(parts) == 1:
            run(self.state, self.rounds, parts[0])
            return value_s, over
        with ThreadPoolExecutor(len(parts)) as pool:
            own = [
                (copy_fast_state(self.state), Rounds(**copied_arrays(self.rounds)), part)
                for part in parts
            ]
            for done in [pool.submit(run, *arguments) for arguments in own]:
                done.result()
        return value_s, over

    def judgement(self, plan: OperatorPlan) -> OperatorJudgement:
        """What the state says after a simulation."""
        p, s, place = self.problem, self.state, plan.placement
        value = float(s.makespan_s[0])
        start_s = s.start_s[: p.n].copy()
        scores.peaks(s, np.full(p.m, -1))
        peak = s.peak_bytes.copy()
        over = np.maximum(0, peak - s.memory_bytes)
        if len(scratch := self.load_scratch()):
            value = float(period(s, self.rounds, self.mode(), thawed(place), scratch))
        took_s = p.compute_s[np.arange(p.n), place]
        with np.errstate(over="ignore"):  # infinite
            end_s = start_s + took_s
        return OperatorJudgement(
            problem=p,
            placement=place,
            value=value,
            feasible=not over.any(),
            violation=violation_words(p, over),
            violation_bytes=int(over.sum()),
            op_start_s=start_s,
            op_end_s=end_s,
            transfers=self._transfers(place, end_s),
            peak_bytes=peak,
            busy_s=np.bincount(place, took_s, minlength=p.m).astype(np.float64),
        )

    def _transfers(self, place: IntArray, op_end_s: FloatArray) -> Transfers:
        s, p = self.state, self.problem
        brings = np.flatnonzero(s.copy == np.arange(len(s.edges)))  # others read what these bring
        tensor = self.rounds.tensor[s.edges["tensor"][brings] - 1]
        producer, target = p.tensor_producer[tensor], place[s.edges["consumer"][brings]]
        source, end = place[producer], s.arrival_s[brings]
        if self.by_rounds:
            start = self.rounds.sent_s[brings]
        else:
            start = op_end_s[producer]
            if p.links is Links.CONTENDED:
                start = _served(start, end, p.channel[source, target])
        by = np.lexsort((target, tensor, start))
        return Transfers(tensor[by], source[by], target[by], start[by], end[by])


def _served(asked_s: FloatArray, end_s: FloatArray, channel: IntArray) -> FloatArray:
    """When each transfer starts: once it is asked for and the one before on its channel has ended.

    As the fast simulator computes it, which is sure of transfers that take some time only: those of
    a channel end in the order in which they are served.
    """
    by = np.lexsort((end_s, channel))
    same = channel[by[1:]] == channel[by[:-1]]
    after, before = by[1:][same], by[:-1][same]
    start_s = asked_s.copy()
    start_s[after] = np.maximum(asked_s[after], end_s[before])
    return start_s


class _OfThread(threading.local):
    """The judge of each thread that asks: a simulation writes into its judge's state."""

    def __init__(self, problem: OperatorProblem) -> None:
        self.judge = OperatorJudge(problem)


class PreparedJudge:
    """What `planning.wings.Judge` asks wing 1 for: all rules are checked, groups and pins too.

    Threads may share it.
    """

    def __init__(self, problem: OperatorProblem) -> None:
        self._problem, self._of_thread = problem, _OfThread(problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return PreparedJudge, (self._problem,)

    def __call__(self, plan: OperatorPlan) -> OperatorJudgement:
        """As `judge`."""
        check_plan(self._problem, plan)
        return _with_rules(self._problem, plan, self._of_thread.judge(plan))

    def values(self, plans: npt.ArrayLike | Iterable[Any]) -> FloatArray:
        """Shape (k,): the value of each plan, ``inf`` where it does not fit.

        `plans`: an array of placements, shape (k, n), or plans as `plan_of` takes them.
        """
        p = self._problem
        given = plans if isinstance(plans, np.ndarray) else list(plans)  # type: ignore[arg-type]
        rows = None if p.contiguous or is_pipeline(p) else _placements(p, given)
        if rows is None:
            return np.array([self._value(plan_of(p, plan)) for plan in given], dtype=np.float64)
        values, over = self._of_thread.judge.many(rows)
        _, first, group = np.unique(p.colocation, return_index=True, return_inverse=True)
        kept = (rows[:, first][:, group] == rows).all(axis=1)
        kept &= ((p.pinned < 0) | (rows == p.pinned)).all(axis=1)
        return np.where(kept & (over == 0), values, np.inf)

    def _value(self, plan: OperatorPlan) -> float:
        try:
            judgement = self(plan)
        except InfeasibleError:
            return float("inf")
        return judgement.value if judgement.feasible else float("inf")


def plan_of(problem: OperatorProblem, given: Any) -> OperatorPlan:
    """A plan of devices by operator, both by name, or of the indices of devices, shape (n,)."""
    if isinstance(given, OperatorPlan):
        return given
    if isinstance(given, Mapping):
        return OperatorPlan.of(problem, given)
    return OperatorPlan(given)


def _placements(problem: OperatorProblem, plans: Any) -> IntArray | None:
    """Plans that are nothing but placements as one array; ``None`` where one has more."""
    if isinstance(plans, np.ndarray) and plans.ndim == 2:
        return plans
    made = [plan_of(problem, plan) for plan in plans]
    if not made or any(plan.order is not None or plan.call is not None for plan in made):
        return None
    return np.stack([plan.placement for plan in made])


def evaluate_many(
    problem: OperatorProblem,
    placements: npt.ArrayLike,
    order: npt.ArrayLike | None = None,
    dispatch: Dispatch = Dispatch.READY,
) -> tuple[FloatArray, IntArray]:
    """Value and memory violation of many placements at once.

    Groups, pins and contiguity are not checked. A search that comes back often keeps an
    `OperatorJudge` and calls its `many`.

    `placements`: Shape (k, n), device indices.
    `order`: Shape (n,), for all of them; by default the upward rank under each placement.

    Returns
    -------
    value_s
        Shape (k,), seconds, ``inf`` where the placement cannot be simulated.
    violation_bytes
        Shape (k,), bytes over, summed over devices.
    """
    return OperatorJudge(problem).many(placements, order, dispatch)


def _can_be_short(problem: OperatorProblem) -> bool:
    """Whether some device could not hold everything at once: else no bytes need be counted."""
    everything = sum(whole_bytes(b).sum() for b in (problem.resident_bytes, problem.tensor_bytes))
    return bool((room_bytes(problem) < everything).any())


def _refusal(p: OperatorProblem, state: FastState, plan: OperatorPlan) -> InfeasibleError:
    """Which of the rules P1 to P3 a plan breaks; `state`: as its simulation has left it."""
    where, place = f"plan for {p.name}", plan.placement
    unable = np.flatnonzero(~np.isfinite(p.compute_s[np.arange(p.n), place]))
    if len(unable):
        operator, device = p.operator_names[unable[0]], p.device_names[place[unable[0]]]
        return InfeasibleError(f"{operator!r} cannot run on {device!r}", where=where)
    source, target = place[p.consumed_from], place[p.consumers]
    apart = np.flatnonzero((source != target) & ~linked(p)[source, target])
    if len(apart):
        first = apart[0]
        return InfeasibleError(
            f"no link from {p.device_names[source[first]]!r} to "
            f"{p.device_names[target[first]]!r} for tensor {p.tensor_names[p.consumed[first]]!r}",
            where=where,
            hint="add a link to the cluster or keep both operators on one device",
        )
    waiting = int(np.flatnonzero(state.ops["waiting"][: p.n])[0])
    return InfeasibleError(
        f"the order contradicts the graph: {p.operator_names[waiting]!r} waits forever",
        where=where,
        hint="list producers before their consumers",
    )
