"""Exact latency of small problems over links."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError, MissingDependencyError
from placewright.numerics.arrays import IntArray
from placewright.operators.judge import OperatorJudgement, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.planners import HEFT, HEFT_CONTENDED
from placewright.operators.planners.sequences.schedule_model import hint, schedule_model
from placewright.operators.planners.sequences.search_state import dispatches
from placewright.operators.planners.trivial import Single
from placewright.operators.problem import (
    Links,
    Objective,
    OperatorProblem,
    Overlap,
    pairwise_only,
)
from placewright.operators.simulation.first_come import in_ticks
from placewright.operators.structure.groups import groups_of
from placewright.planning.contract import Context, Planner, Proposal, proposal_of
from placewright.solvers.answer import installed
from placewright.solvers.cp_sat import run_cp_sat

ENOUGH = 5e-7
"""Relative gap at which the solver ends: less than what counts as proved."""


@final
@dataclass(frozen=True, slots=True)
class ExactSchedule:
    """Optimal latency of some tens of operators, by CP-SAT (see `sequences.schedule_model`).

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
        if not installed():
            raise MissingDependencyError("ortools", extra="exact", purpose="proofs of latency")
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
        m = schedule_model(relaxed, groups, judgement.value)
        hint(m, groups, plan.placement, (judgement.op_start_s, judgement.op_end_s))
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
        return [(in_ticks(problem), 1.0)]
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
