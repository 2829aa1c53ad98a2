"""Exact throughput and latency around host memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError, MissingDependencyError
from placewright.numerics.arrays import IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.contiguous_dp import (
    NoProofError,
    counts_all,
    line_or_none,
    over_ideals,
    proved,
)
from placewright.operators.planners.exact_latency import ExactLatency
from placewright.operators.planners.exact_links import ExactLinks
from placewright.operators.planners.exact_schedule import ExactSchedule
from placewright.operators.planners.pipelines.columns import proving
from placewright.operators.planners.pipelines.contiguous import IdealChain, best_stages
from placewright.operators.planners.pipelines.contraction import Contraction, contract
from placewright.operators.planners.pipelines.slots import (
    HEATS,
    annealed,
    beside,
    best_cuts,
    by_trios,
    plan_of,
    slot_kinds,
    slots_of,
    too_large,
)
from placewright.operators.problem import (
    Communication,
    Objective,
    OperatorProblem,
    star_throughput_only,
)
from placewright.operators.simulation.loads import stages, star_value
from placewright.operators.simulation.star import is_star_latency
from placewright.planning.contract import Context, Proposal
from placewright.report.text import size
from placewright.solvers.programs import installed, missing, require


@final
@dataclass(frozen=True, slots=True)
class Exact:
    """Optimal throughput, contiguous or not, and optimal latency.

    Latency is that of calls through host memory: see `ExactLatency`, which needs no solver.

    The model is that of Tarnawski et al., NeurIPS 2020, arXiv 2006.16423, section 5.1; they give a
    mixed-integer program for a commercial solver. Ours is built on the contracted graph
    (`pipelines.contraction`), of stage numbers (`pipelines.contiguous`), and starts from
    `LinearisedDp`. Where the forward graph has few ideals, `IdealDp` is faster and needs no solver.
    Where plans need not be contiguous, HiGHS goes on from there with one variable per hyperedge and
    device instead of one for what goes in and one for what goes out (`pipelines.slots`). Beside
    it column generation proves bounds, which are far higher on long graphs of unlike operators
    (`pipelines.columns`).
    Before it and beside it placements are annealed (`pipelines.slots`); before it and in the
    last quarter of the time three devices at a time are planned anew (`by_trios` there), in
    the last quarter beside annealing too.

    What a solver claims is scored again. CP-SAT counts in whole numbers, 2**25 of them up to the
    start's value, and rounds down: its bound holds, and is below its optimum by less than a unit
    for each term of a load (some 1e-6 of the value). Where it has searched to its end, the plan
    states that as `Proposal.resolution`. HiGHS counts in floating point (bound lowered by 1e-7 of
    the start's value).

    The same seed gives the same plan where the search ends before the deadline.

    Parameters
    ----------
    few_ideals
        Up to so many, dynamic programming over ideals comes before CP-SAT.
    workers
        Threads of CP-SAT.
    """

    name: ClassVar[str] = "exact"
    few_ideals: int = 20_000
    workers: int = 1

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Throughput, latency through host memory, latency of few operators over links."""
        if is_star_latency(problem):
            return ExactLatency().unsupported_reason(problem)
        if problem.communication is Communication.PAIRWISE:
            return _over_links(problem).unsupported_reason(problem)
        return star_throughput_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan, with what was proved.

        Raises `InfeasibleError` (no plan fits the memories) or `MissingDependencyError` (a solver
        is needed for any plan at all and not installed).
        """
        if is_star_latency(problem):
            return ExactLatency()(problem, context)
        if problem.communication is Communication.PAIRWISE:
            return _over_links(problem)(problem, context)
        if problem.contiguous:
            return self._contiguous(problem, context)
        return self._free(problem, context)

    def _contiguous(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        c = contract(problem, contiguous=True)
        start = line_or_none(c, context.deadline_s)
        if counts_all(problem):
            try:
                chain = over_ideals(c, start, self.few_ideals, context.deadline_s)
            except NoProofError:
                pass
            except KeyboardInterrupt:
                if start is None:
                    raise
                return Proposal(c.plan(start.stage, start.kinds), interrupted=True)
            else:
                plan = c.plan(chain.stage, chain.kinds)
                return best_of(problem, [plan], proved(chain, problem.n))
        if not installed("ortools"):
            return _line_plan(c, start)
        if start is not None:  # with clusters, or pass by pass, the line counts otherwise
            value = load_of(problem, c.plan(start.stage, start.kinds))
            start = replace(start, value_s=value)
        found = best_stages(
            c, start, seed=context.seed, deadline_s=context.deadline_s, workers=self.workers
        )
        chains = [x for x in (found.chain, start) if x is not None]
        plans = [c.plan(x.stage, x.kinds) for x in chains]
        best = best_of(problem, plans, found.bound_s, found.resolution_s)
        return replace(best, interrupted=found.interrupted)

    def _free(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """From the best contiguous plan."""
        try:
            first = self._contiguous(problem, context.part(0.25))
        except InfeasibleError:  # what lies on a cycle need not be together here
            first = None
        c = contract(problem, contiguous=False)
        there = installed("highspy")
        if first is not None and (too_large(c) or not there or first.interrupted):
            why = "too large for the solver" if there else missing("highspy")
            note = f"{why}: a contiguous plan"
            return Proposal(first.plan, interrupted=first.interrupted, note=note)
        require("highspy", "a plan of this problem")
        return self._from(problem, context, c, [] if first is None else [first.plan])

    def _from(
        self, problem: OperatorProblem, context: Context, c: Contraction, plans: list[OperatorPlan]
    ) -> Proposal[OperatorPlan]:
        """Anneal and branch; adds every better plan to `plans`, Ctrl-C stops it."""
        bound, stopped = 0.0, False
        try:
            if plans and problem.pipeline.plain:
                stopped = self._prepare(problem, context, c, plans)
            if not stopped:
                with _proof(problem, context, c, plans) as proved:
                    bound, stopped = self._branch(problem, context, c, plans)
                    bound = max(bound, proved())
        except KeyboardInterrupt:
            if not plans:
                raise
            stopped = True
        return replace(best_of(problem, plans, bound), interrupted=stopped)

    def _prepare(
        self, problem: OperatorProblem, context: Context, c: Contraction, plans: list[OperatorPlan]
    ) -> bool:
        """Anneal, and plan three devices at a time anew; whether Ctrl-C came.

        Alone: what runs beside it would take from branching the plan that it starts from.
        """
        early = context.part(0.25).deadline_s
        slot, stopped = annealed(
            c, slots_of(c, plans[0]), _value(problem, c), seed=context.seed, deadline_s=early
        )
        plans.append(plan_of(c, slot))
        if not stopped:
            slot, stopped = by_trios(problem, c, slot, seed=context.seed, deadline_s=early)
            plans.append(plan_of(c, slot))
        return stopped

    def _branch(
        self, problem: OperatorProblem, context: Context, c: Contraction, plans: list[OperatorPlan]
    ) -> tuple[float, bool]:
        """HiGHS on the whole, and after it on three devices at a time, walks beside both.

        Adds to `plans`; returns a bound and whether Ctrl-C came.
        """
        small, value_of = problem.pipeline.plain, _value(problem, c)
        slot = slots_of(c, best_of(problem, plans, 0.0).plan) if plans else None
        value, aside = c.most_s if slot is None else value_of(slot), None
        if small and slot is not None:
            aside = beside(c, slot, value_of, seed=context.seed + len(HEATS))
        # Without walks beside it nothing comes after the solver: it has all of the time.
        until = context.deadline_s if aside is None else context.part(0.75).deadline_s
        with aside or nullcontext() as walks:
            found, bound, stopped = best_cuts(
                c, slot, value, seed=context.seed, deadline_s=until, progress=context.progress
            )
            # A solver that has proved its plan needs no walks; waiting for them would only cost
            # time.
            if walks is not None and (stopped or time.perf_counter() >= until):
                plans.append(plan_of(c, walks()))
        plans += [] if found is None else [plan_of(c, found)]
        if small and found is not None and not stopped and time.perf_counter() >= until:
            best, seed = slots_of(c, best_of(problem, plans, 0.0).plan), context.seed + 1000
            with beside(c, best, value_of, seed=seed) as walks:
                better, stopped = by_trios(
                    problem, c, best, seed=context.seed, deadline_s=context.deadline_s
                )
                plans += [plan_of(c, better), plan_of(c, walks())]
        return bound, stopped


def _value(problem: OperatorProblem, c: Contraction) -> Callable[[IntArray], float]:
    """The load of a plan by the slots of its nodes."""
    return lambda slot: load_of(problem, plan_of(c, slot))


def _proof(
    problem: OperatorProblem, context: Context, c: Contraction, plans: list[OperatorPlan]
) -> AbstractContextManager[Callable[[], float]]:
    """Bounds beside branching; none where there is no plan, or other rules hold."""
    if not plans or not problem.pipeline.plain:
        return nullcontext(lambda: 0.0)
    value = min(load_of(problem, plan) for plan in plans)
    return proving(c, np.array(slot_kinds(c)), value, deadline_s=context.deadline_s)


def _over_links(problem: OperatorProblem) -> ExactLinks | ExactSchedule:
    """The planner of problems without host memory."""
    return ExactSchedule() if problem.objective is Objective.LATENCY else ExactLinks()


def _line_plan(c: Contraction, start: IdealChain | None) -> Proposal[OperatorPlan]:
    """The best cut of one line of operators, for use without a solver."""
    if start is None:
        raise MissingDependencyError("ortools", extra="exact", purpose="a plan of this problem")
    return Proposal(c.plan(start.stage, start.kinds), note=f"{missing('ortools')}: the line's plan")


def load_of(problem: OperatorProblem, plan: OperatorPlan) -> float:
    """The largest load, ``inf`` where a memory overflows."""
    held = np.bincount(plan.placement, np.ceil(problem.resident_bytes), minlength=problem.m)
    if (held[stages(problem, plan)[0]] > problem.memory_bytes).any():
        return math.inf
    return star_value(problem, plan)


def best_of(
    problem: OperatorProblem,
    plans: Sequence[OperatorPlan],
    bound: float,
    resolution_s: float = 0.0,
) -> Proposal[OperatorPlan]:
    """The best of a solver's plans, scored again; a bound above it is an error and is dropped.

    `resolution_s`: the most that rounding can have taken from the value that the solver proved to
    be least. Of it the plan keeps what lies between its value and the bound; where more does,
    nothing.
    """
    values = [load_of(problem, plan) for plan in plans]
    if not values or min(values) == math.inf:
        raise InfeasibleError(
            "no plan that fits the memories was found",
            where=problem.name,
            by=f"{size(problem.resident_bytes.sum())} resident",
            hint="raise a memory limit, add a device, or allow more time",
        )
    best = int(np.argmin(values))
    sound = math.isfinite(bound) and bound <= values[best] * (1 + 1e-6)
    if not sound:
        return Proposal(plans[best])
    bound = min(bound, values[best])
    lost_s = values[best] - bound
    return Proposal(plans[best], bound, lost_s if lost_s <= resolution_s else 0.0)
