"""Candidates of CEFT+PBQP that need no search: V0, V2, V4, list schedules and simple rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.ceft import Ceft
from placewright.operators.planners.ceft_cpop import CeftCpop
from placewright.operators.planners.cpop import Cpop
from placewright.operators.planners.heft import Heft
from placewright.operators.planners.heft_contended import HeftContended
from placewright.operators.planners.peft import Peft
from placewright.operators.planners.placements.search import Start, score_plan
from placewright.operators.planners.pricing.priced import PricingContext, within_memory
from placewright.operators.planners.pricing.starts import in_stretches, on_one_device
from placewright.operators.planners.round_robin import RoundRobin
from placewright.operators.planners.topological_split import TopologicalSplit
from placewright.operators.structure.ceft import Ceft as Tables
from placewright.operators.structure.ceft import ceft
from placewright.planning.contract import Context, Planner
from placewright.solvers.pbqp import PbqpSolution

MEMORY_ROUNDS = 4
"""How often the price of bytes is raised for one variant."""

LISTED: tuple[Planner, ...] = (
    Ceft(),
    CeftCpop(),
    Heft(),
    HeftContended(),
    Cpop(),
    Peft(),
    RoundRobin(),
    TopologicalSplit(),
)
"""List schedules by CEFT's costs and by mean costs, and the trivial plans."""


def simple(d: PricingContext) -> list[IntArray]:
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
    found = _around_path(d, ceft(d.problem), deadline_s)
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


def listed(d: PricingContext, context: Context) -> list[Start]:
    """Plans of `LISTED`, with their own order and with the judge's."""
    found = []
    for planner in LISTED:
        try:
            plan = planner(d.problem, context)
            shown = [plan] if plan.order is None else [plan, OperatorPlan(plan.placement)]
            found += [score_plan(d.judge, p) for p in shown]
        except InfeasibleError:
            continue  # no link for some tensor: other candidates may still find a way
    return found


def _around_path(d: PricingContext, tables: Tables, deadline_s: float) -> list[IntArray]:
    return _fixed(d, tables.path, tables.path_devices, deadline_s)


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
