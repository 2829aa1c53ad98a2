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
from placewright.operators.costs import break_of_chain, kernel_costs
from placewright.operators.judgement import OperatorJudgement, Transfers, violation_words
from placewright.operators.plan import Dispatch, OperatorPlan, check_plan
from placewright.operators.problem import Communication, Links, Objective, OperatorProblem, Overlap
from placewright.operators.simulation import scores
from placewright.operators.simulation.fast import UNSURE
from placewright.operators.simulation.fast_state import FastState, copy_fast_state, make_fast_state
from placewright.operators.simulation.full import makespan, period, simulate
from placewright.operators.simulation.full_state import SimulatorState, copy_state, make_state
from placewright.operators.simulation.inputs import (
    DONE,
    NO_KERNEL,
    NO_LINK,
    Mode,
    checked_batch,
    default_order,
    parts_of_batch,
)
from placewright.operators.simulation.loads import as_pipeline, is_pipeline
from placewright.operators.simulation.star import judge_star, star_scores
from placewright.operators.sizes import room_bytes, whole_bytes

__all__ = ["OperatorJudge", "OperatorJudgement", "Transfers", "evaluate_many", "judge"]


def judge(problem: OperatorProblem, plan: OperatorPlan) -> OperatorJudgement:
    """Value, schedule, transfers and memory of a plan.

    Raises
    ------
    InputError
        The plan does not match the problem, or its order contradicts the graph.
    InfeasibleError
        An operator on a device that cannot run it, a tensor between devices without a link.
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
    full
        State of the full simulator, for compiled searches:
        ``simulate(*judge.full, judge.mode(), placement, order)``.
    """

    __slots__ = ("_fast", "full", "problem")

    def __init__(self, problem: OperatorProblem) -> None:
        self.problem = problem
        costs = kernel_costs(problem)
        second_pass = problem.is_backward if problem.pipeline.diffmaxima else None
        self.full = make_state(costs, len(problem.channel_names), second_pass)
        self._fast: FastState | None = None

    @property
    def fast(self) -> FastState:
        """State of the fast simulator, for batches and searches."""
        if self._fast is None:
            costs = kernel_costs(self.problem)
            self._fast = make_fast_state(costs, len(self.problem.channel_names))
        return self._fast

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
        code = simulate(*self.full, self.mode(plan.dispatch), thawed(plan.placement), order)
        if code != DONE:
            raise _refusal(self.problem, self.full, code, plan)
        return self._judgement(plan)

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
        value_s, over = self._scored(rows, fixed, mode, full=throughput or mode.serial)
        unsure = np.flatnonzero(value_s == UNSURE)
        if len(unsure):
            value_s[unsure], over[unsure] = self._scored(rows[unsure], fixed, mode, full=True)
        return value_s, over

    def _scored(
        self, rows: IntArray, order: IntArray, mode: Mode, *, full: bool
    ) -> tuple[FloatArray, IntArray]:
        """Scores of placements by the kernels, on several cores where there are many."""
        p = self.problem
        value_s, over = np.empty(len(rows)), np.zeros(len(rows), dtype=np.int64)

        def run(fast: FastState, simulator: SimulatorState, part: slice) -> None:
            asked, load_s = simulator if full else None, self.load_scratch()
            scores.run_many(fast, asked, mode, load_s, rows[part], order, value_s[part], over[part])

        parts = parts_of_batch(len(rows), len(rows) * (p.n + len(p.consumers)))
        if len(parts) == 1:
            run(self.fast, self.full, parts[0])
            return value_s, over
        with ThreadPoolExecutor(len(parts)) as pool:
            own = [(copy_fast_state(self.fast), copy_state(self.full), part) for part in parts]
            for done in [pool.submit(run, *arguments) for arguments in own]:
                done.result()
        return value_s, over

    def _judgement(self, plan: OperatorPlan) -> OperatorJudgement:
        """What the full simulator's state says after a simulation."""
        p, (w, x, o), place = self.problem, self.full, plan.placement
        if not len(scratch := self.load_scratch()):
            value = float(makespan(x, o))
        else:
            value = float(period(w, x, o, self.mode(), thawed(place), scratch))
        peak = w[o.peak : o.peak + p.m].copy()
        over = np.maximum(0, peak - w[o.memory_bytes : o.memory_bytes + p.m])
        took_s = p.compute_s[np.arange(p.n), place]
        return OperatorJudgement(
            problem=p,
            placement=place,
            value=value,
            feasible=not over.any(),
            violation=violation_words(p, over),
            violation_bytes=int(over.sum()),
            op_start_s=x[o.start_s : o.start_s + p.n].copy(),
            op_end_s=x[o.end_s : o.end_s + p.n].copy(),
            transfers=self._transfers(place),
            peak_bytes=peak,
            busy_s=np.bincount(place, took_s, minlength=p.m).astype(np.float64),
        )

    def _transfers(self, place: IntArray) -> Transfers:
        w, x, o = self.full
        count = int(w[o.transfer_count])
        tensor = w[o.transfer_tensor : o.transfer_tensor + count]
        target = w[o.transfer_target : o.transfer_target + count]
        start, end = x[o.sent_s : o.sent_s + count], x[o.event_s + o.m : o.event_s + o.m + count]
        by = np.lexsort((target, tensor, start))
        source = place[self.problem.tensor_producer[tensor]]
        return Transfers(tensor[by], source[by], target[by], start[by], end[by])


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


def _refusal(
    p: OperatorProblem, full: SimulatorState, code: int, plan: OperatorPlan
) -> InputError | InfeasibleError:
    """Why the full simulator could not simulate a plan, from the state that it left."""
    w, _, o = full
    failed_item, where = int(w[o.failed_item]), f"plan for {p.name}"
    if code == NO_LINK:
        tensor, target = (
            int(w[o.transfer_tensor + failed_item]),
            int(w[o.transfer_target + failed_item]),
        )
        source = int(plan.placement[p.tensor_producer[tensor]])
        return InfeasibleError(
            f"no link from {p.device_names[source]!r} to {p.device_names[target]!r} "
            f"for tensor {p.tensor_names[tensor]!r}",
            where=where,
            hint="add a link to the cluster or keep both operators on one device",
        )
    if code == NO_KERNEL:
        device = p.device_names[int(plan.placement[failed_item])]
        return InfeasibleError(
            f"{p.operator_names[failed_item]!r} cannot run on {device!r}", where=where
        )
    return InputError(
        f"the order contradicts the graph: {p.operator_names[failed_item]!r} waits forever",
        where=where,
        hint="list producers before their consumers",
    )
