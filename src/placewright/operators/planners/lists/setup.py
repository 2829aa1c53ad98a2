"""From a problem to the arrays of a list schedule and back to a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.judge import Judge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.lists.insertion import Rules
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.structure.costs import Costs, kernel_costs, linked
from placewright.operators.structure.groups import Groups, groups_of

_BUDGET_ROUNDS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """What every list scheduler computes first.

    Attributes
    ----------
    allowed
        Shape (n, m): devices that an operator's whole group can use.
    mean_compute_s
        Shape (n,), mean over the devices that an operator may use.
    mean_latency_s, mean_seconds_per_byte
        Mean over the ordered pairs of different, linked devices: a transfer within a device is
        no transfer and does not belong in the mean.
    """

    problem: OperatorProblem
    costs: Costs
    groups: Groups
    allowed: BoolArray
    mean_compute_s: FloatArray
    mean_latency_s: float
    mean_seconds_per_byte: float

    def rules(self, budget_bytes: FloatArray, forced: IntArray | None = None) -> Rules:
        """Where operators may go."""
        return Rules(
            allowed=self.allowed,
            group=self.groups.group,
            group_bytes=self.groups.resident_bytes,
            budget_bytes=budget_bytes,
            forced=np.full(self.problem.n, -1) if forced is None else forced,
        )


def set_up(problem: OperatorProblem) -> Setup:
    """Means, groups and kernel arrays of a problem."""
    groups = groups_of(problem)
    allowed = groups.allowed[groups.group]
    compute = np.where(allowed, problem.compute_s, 0.0).sum(axis=1) / allowed.sum(axis=1)
    pair = linked(problem)
    pairs = max(1, int(pair.sum()))
    return Setup(
        problem=problem,
        costs=kernel_costs(problem),
        groups=groups,
        allowed=allowed,
        mean_compute_s=compute,
        mean_latency_s=float(problem.latency_s[pair].sum()) / pairs,
        mean_seconds_per_byte=float(problem.seconds_per_byte[pair].sum()) / pairs,
    )


def scheduled_plan(
    problem: OperatorProblem, place: IntArray, start_s: FloatArray, end_s: FloatArray
) -> OperatorPlan:
    """The plan that a schedule means: its placement, and its starts as the order.

    Where transfers do not wait the schedule itself is meant, gaps and all: in order. Where
    they do, its times will not hold, and a device that waits for its turn only loses: ready.

    Raises `InfeasibleError`: the schedule stopped at an operator that it could not reach.
    """
    if place.min() < 0:
        op = problem.operator_names[int(place.argmin())]
        raise InfeasibleError(
            f"no device that can run {op!r} is linked to all of its producers",
            where=problem.name,
            hint="add links, or try another planner",
        )
    position = np.argsort(problem.topology.order)
    order = np.lexsort((position, end_s, start_s))
    free = problem.links is Links.FREE
    return OperatorPlan(place, order, Dispatch.IN_ORDER if free else Dispatch.READY)


def within_memory(
    problem: OperatorProblem,
    build: Callable[[FloatArray], OperatorPlan],
    deadline_s: float = math.inf,
) -> OperatorPlan:
    """`build` a plan with ever smaller budgets until its peaks fit.

    List schedulers see resident bytes and not the activations that pile up; what a device was
    over by is taken off its budget. If no round fits before the deadline, the plan that is over
    by least.

    Raises `InfeasibleError`: what `build` raises under the memories themselves.
    """
    budget = np.array(problem.memory_bytes)
    best = build(budget)
    if not np.isfinite(budget).any():
        return best
    judge, plan, least = Judge(problem), best, np.inf
    with suppress(InfeasibleError):  # smaller budgets may leave only devices without a link
        for _ in range(_BUDGET_ROUNDS):
            judgement = judge(plan)
            if judgement.violation_bytes < least:
                best, least = plan, judgement.violation_bytes
            if judgement.feasible or time.perf_counter() >= deadline_s:
                break
            # What a device was over by is what activations take that list schedulers do not see.
            budget = budget - np.maximum(0, judgement.peak_bytes - problem.memory_bytes)
            plan = build(budget)
    return best
