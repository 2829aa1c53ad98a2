"""From a problem to the arrays and ranks of a list schedule, and back to a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_cached
from placewright.operators.costs import Costs, kernel_costs, linked, move_time
from placewright.operators.groups import Groups, groups_of
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.lists.insertion import Rules
from placewright.operators.problem import Links, OperatorProblem

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
    judge, plan, least = OperatorJudge(problem), best, np.inf
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


@njit_cached
def mean_upward_rank(
    c: Costs, compute_s: FloatArray, latency_s: float, seconds_per_byte: float
) -> FloatArray:
    """rank(i) = w(i) + max over consumers j of (c(i, j) + rank(j)), with mean costs."""
    rank = np.zeros(len(compute_s))
    for at in range(len(c.order) - 1, -1, -1):
        i = c.order[at]
        tail = 0.0
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            transfer_s = latency_s + c.tensor_bytes[k] * seconds_per_byte
            for b in range(c.offsets[k], c.offsets[k + 1]):
                tail = max(tail, transfer_s + rank[c.consumers[b]])
        rank[i] = compute_s[i] + tail
    return rank


@njit_cached
def mean_downward_rank(
    c: Costs, compute_s: FloatArray, latency_s: float, seconds_per_byte: float
) -> FloatArray:
    """rank(i) = max over producers p of (rank(p) + w(p) + c(p, i)): the producer's w, not i's."""
    rank = np.zeros(len(compute_s))
    for i in c.order:
        for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
            k = c.in_tensors[a]
            p = c.producer[k]
            transfer_s = latency_s + c.tensor_bytes[k] * seconds_per_byte
            rank[i] = max(rank[i], rank[p] + compute_s[p] + transfer_s)
    return rank


@njit_cached
def mean_critical_path(
    c: Costs, rank: FloatArray, latency_s: float, seconds_per_byte: float
) -> IntArray:
    """Operators from the highest upward rank along its arg max to a sink."""
    n = len(rank)
    path = np.empty(n, dtype=np.int64)
    i, size = -1, 0
    for j in range(n):
        if i < 0 or rank[j] > rank[i]:
            i = j
    while i >= 0:
        path[size] = i
        size += 1
        longest, following = -1.0, -1
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            transfer_s = latency_s + c.tensor_bytes[k] * seconds_per_byte
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                if transfer_s + rank[j] > longest:
                    longest, following = transfer_s + rank[j], j
        i = following
    return path[:size]


@njit_cached
def optimistic_costs(c: Costs, work_s: FloatArray) -> FloatArray:
    """PEFT's table, shape (n, m); transfers between the very devices.

    oct(i,p) = max over consumers j of min over q of (c(i,p -> j,q) + w(j,q) + oct(j,q)).
    """
    n, m = work_s.shape
    table = np.zeros((n, m))
    for at in range(n - 1, -1, -1):
        i = c.order[at]
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                for p in range(m):
                    best = np.inf
                    for q in range(m):
                        best = min(best, move_time(c, k, p, q) + (table[j, q] + work_s[j, q]))
                    table[i, p] = max(table[i, p], best)
    return table
