"""Placements at which searches begin: simple rules, list schedules, and V0, V2, V4 of CEFT+PBQP."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.costs import Groups, ceft
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.chains import first_places
from placewright.operators.planners.lists.planners import (
    CEFT,
    CEFT_CPOP,
    CPOP,
    HEFT,
    HEFT_CONTENDED,
    PEFT,
)
from placewright.operators.planners.placements import Start, score_plan
from placewright.operators.planners.pricing import PricingContext, within_memory
from placewright.operators.planners.trivial import RoundRobin, TopologicalSplit
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Planner
from placewright.solvers.pbqp import PbqpSolution


def on_one_device(groups: Groups, costs: FloatArray) -> list[IntArray]:
    """Everything on each device; groups that it cannot run go where they run fastest."""
    fallback = costs.argmin(axis=1)
    return [
        np.where(groups.allowed[:, d], d, fallback)[groups.group] for d in range(costs.shape[1])
    ]


def with_devices_exchanged(place: IntArray, m: int) -> list[IntArray]:
    """`place` with the roles of two devices exchanged, for every pair."""
    found = []
    for a in range(m):
        for b in range(a + 1, m):
            role = np.arange(m)
            role[[a, b]] = b, a
            found.append(role[place])
    return found


def in_stretches(
    problem: OperatorProblem, groups: Groups, costs: FloatArray, weight: FloatArray
) -> list[IntArray]:
    """A depth-first line of operators cut into one stretch per device, for the 2, 3, ... m fastest.

    `costs`: shape (groups, m), seconds.
    `weight`: shape (groups,): what is shared out in proportion to the devices' speed.
    """
    order = np.argsort(first_places(problem, groups), kind="stable")
    before = np.cumsum(weight[order]) - weight[order] / 2
    fallback = costs.argmin(axis=1)
    finite = np.isfinite(costs)
    total = np.where(finite, costs, costs[finite].mean()).sum(axis=0)
    speed = 1.0 / np.maximum(total, 1e-30)
    fastest = np.argsort(-speed, kind="stable")
    found = []
    for count in range(2, problem.m + 1):
        share = speed[fastest[:count]]
        ends = np.cumsum(share / share.sum()) * weight.sum()
        part = np.minimum(np.searchsorted(ends, before, side="right"), count - 1)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = fastest[part]
        open_ = groups.allowed[np.arange(len(place)), place]
        found.append(np.where(open_, place, fallback)[groups.group])
    return found


MEMORY_ROUNDS = 4
"""How often the price of bytes is raised for one variant."""

LIST_SCHEDULERS: tuple[Planner, ...] = (
    CEFT,
    CEFT_CPOP,
    HEFT,
    HEFT_CONTENDED,
    CPOP,
    PEFT,
    RoundRobin(),
    TopologicalSplit(),
)
"""List schedules by CEFT's costs and by mean costs, and the trivial plans."""


def simple_placements(d: PricingContext) -> list[IntArray]:
    """One device each, and stretches cut by time and by bytes."""
    groups, costs = d.graph.groups, d.costs(d.problem.compute_s)
    seconds = np.where(groups.allowed, costs, 0.0).sum(axis=1) / groups.allowed.sum(axis=1)
    return [
        *on_one_device(groups, costs),
        *in_stretches(d.problem, groups, costs, seconds),
        *in_stretches(d.problem, groups, costs, d.group_bytes),
    ]


def with_paths(d: PricingContext, deadline_s: float) -> list[IntArray]:
    """V0: the critical path on CEFT's devices. V4: the paths of mean, least, largest costs."""
    compute, allowed = d.problem.compute_s, d.problem.allowed()
    masked = np.ma.masked_array(compute, ~allowed)
    tables = ceft(d.problem)
    found = _fixed(d, tables.path, tables.path_devices, deadline_s)
    for row in (masked.mean(axis=1), masked.min(axis=1), masked.max(axis=1)):
        flat = np.where(np.isfinite(compute), np.asarray(row)[:, None], np.inf)
        path = ceft(d.problem.replace(compute_s=flat)).path
        whole = np.where(allowed[path], compute[path], np.inf).sum(axis=0)
        if np.isfinite(whole).any():
            device = int(whole.argmin())
            found += _fixed(d, path, np.full(len(path), device), deadline_s)
    return found


def least_total(d: PricingContext, deadline_s: float) -> list[IntArray]:
    """Plain PBQP, within memory where prices for bytes can bring it there."""
    costs = d.costs(d.problem.compute_s)
    return _all(d, within_memory(d, costs, 2 * MEMORY_ROUNDS, None, deadline_s))


def slack_aware(d: PricingContext, deadline_s: float) -> list[IntArray]:
    """V2: pay for lengthening the longest path; transfers count for less where there is slack."""
    tables = ceft(d.problem)
    slack = np.where(np.isfinite(tables.through_s), tables.slack_s, 0.0)
    costs = d.costs(d.problem.compute_s + np.maximum(0.0, -slack))
    spare = np.maximum(0.0, slack.max(axis=1))[d.problem.tensor_producer]
    scale = 1.0 / (1.0 + spare / max(tables.critical_s, 1e-300))
    return _all(d, within_memory(d, costs, MEMORY_ROUNDS, scale, deadline_s))


def list_starts(d: PricingContext, context: Context) -> list[Start]:
    """Plans of `LIST_SCHEDULERS`, with their own order and with the judge's."""
    found: list[Start] = []
    for planner in LIST_SCHEDULERS:
        if found and context.remaining_s() <= 0:
            break
        try:
            plan = planner(d.problem, context)
            plans = [plan] if plan.order is None else [plan, OperatorPlan(plan.placement)]
            found += [score_plan(d.judge, p) for p in plans]
        except InfeasibleError:
            continue  # no link for some tensor: other candidates may still find a way
    return found


def _fixed(
    d: PricingContext, path: IntArray, devices: IntArray, deadline_s: float
) -> list[IntArray]:
    """PBQP with the groups of a path fixed; members vote with their run time."""
    groups = d.graph.groups
    votes = np.zeros(groups.allowed.shape)
    np.add.at(votes, (groups.group[path], devices), d.problem.compute_s[path, devices] + 1e-300)
    costs = _only(d.costs(d.problem.compute_s), votes)
    return _all(d, within_memory(d, costs, MEMORY_ROUNDS, None, deadline_s))


def _all(d: PricingContext, solutions: Iterator[PbqpSolution]) -> list[IntArray]:
    return [d.place(solution.choice) for solution in solutions]


def _only(costs: FloatArray, votes: FloatArray) -> FloatArray:
    """Forbid all but the device with most votes where there are any and it is allowed."""
    winner = votes.argmax(axis=1)
    voted = votes.max(axis=1) > 0
    voted &= np.isfinite(costs[np.arange(len(costs)), winner])
    others = voted[:, None] & (np.arange(costs.shape[1]) != winner[:, None])
    return np.where(others, np.inf, costs)
