"""Placements by PBQP under prices: for device time, and for bytes where memory is short."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.judge import Judge, OperatorJudgement
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.chains import first_places
from placewright.operators.planners.placements.search import (
    Start,
    improve,
    operator_bytes,
    score_all,
)
from placewright.operators.planners.pricing.graph import (
    PlacementGraph,
    placement_graph,
    placement_pbqp,
)
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.groups import group_costs
from placewright.planning.contract import Context, Needs
from placewright.solvers.pbqp import PbqpSolution, solve_pbqp

PBQP_S, PBQP_ARRAYS = 1e-6, 5
"""Seconds of a PBQP's reduction per entry of its edge costs, and arrays of as many entries."""

PRICE_LIMIT = 1e3
"""Prices of device time stay within this factor of each other."""


@dataclass(frozen=True, slots=True, eq=False)
class PricingContext:
    """Inputs that all priced solves of one problem share.

    Attributes
    ----------
    graph
        Groups and the tensors between them.
    group_bytes
        Shape (groups,): resident bytes and outputs, on which a price for memory is paid. They
        weigh more the later a group stands: one price for all would move a uniform chain as a
        whole, a rising one cuts it.
    branch_limit
        For each exact solve.
    """

    judge: Judge
    graph: PlacementGraph
    group_bytes: FloatArray
    branch_limit: int

    @property
    def problem(self) -> OperatorProblem:
        """The problem."""
        return self.judge.problem

    def solve(
        self,
        costs_s: FloatArray,
        byte_prices_s: FloatArray,
        scale: FloatArray | None = None,
        deadline_s: float = np.inf,
    ) -> PbqpSolution:
        """The PBQP for these group costs, shape (groups, m), and prices per byte, shape (m,).

        After the deadline by the heuristic RN alone: the first exact reduction takes seconds where
        there are thousands of groups and eight devices.

        Raises `InfeasibleError`: no placement has a link for every tensor.
        """
        costs = costs_s + self.group_bytes[:, None] * byte_prices_s
        pbqp = placement_pbqp(self.problem, self.graph, costs, scale=scale)
        in_time = time.perf_counter() < deadline_s
        found = solve_pbqp(
            pbqp, exact=in_time, branch_limit=self.branch_limit, deadline_s=deadline_s
        )
        if not np.isfinite(found.value):
            raise InfeasibleError(
                "no placement found in which every tensor has a link",
                where=self.problem.name,
                hint="add links, or drop pins",
            )
        return found

    def place(self, choice: IntArray) -> IntArray:
        """Devices of operators from devices of groups."""
        return choice[self.graph.groups.group]

    def costs(self, operator_costs_s: FloatArray) -> FloatArray:
        """Shape (groups, m)."""
        return group_costs(self.graph.groups, operator_costs_s)


def pbqp_needs(problem: OperatorProblem) -> Needs:
    """Of one PBQP: every tensor use between groups has costs for each pair of devices."""
    entries = float(len(problem.consumers)) * problem.m**2
    return Needs(PBQP_S * entries, 8.0 * PBQP_ARRAYS * entries)


def pricing_context(
    problem: OperatorProblem, branch_limit: int, graph: PlacementGraph | None = None
) -> PricingContext:
    """Build the inputs that all pricing rounds share; `graph` where it is known already."""
    graph = graph or placement_graph(problem)
    held = np.bincount(graph.groups.group, operator_bytes(problem))
    later = first_places(problem, graph.groups) / problem.n
    return PricingContext(Judge(problem), graph, held * (0.5 + later), branch_limit)


def within_memory(
    d: PricingContext,
    costs_s: FloatArray,
    rounds: int,
    scale: FloatArray | None = None,
    deadline_s: float = np.inf,
) -> Iterator[PbqpSolution]:
    """Solve, and raise prices of bytes where judged peaks exceed the memory, until the plan fits.

    One solution per round: the first is without prices, the last the one that fits if any does
    before the deadline.

    Raises `InfeasibleError`: no placement has a link for every tensor.
    """
    prices = np.zeros(d.problem.m)
    solution = d.solve(costs_s, prices, scale, deadline_s)
    yield solution
    with suppress(InfeasibleError):  # prices may mislead the solver: what it found stays
        for _ in range(rounds):
            judgement = d.judge(OperatorPlan(d.place(solution.choice)))
            if judgement.feasible or time.perf_counter() >= deadline_s:
                return
            prices = raised_prices(d, prices, judgement)
            solution = d.solve(costs_s, prices, scale, deadline_s)
            yield solution


def raised_prices(
    d: PricingContext, prices: FloatArray, judgement: OperatorJudgement
) -> FloatArray:
    """New prices per byte: higher where the peak exceeds the memory, lower where far below it."""
    memory = d.problem.memory_bytes
    if not np.isfinite(memory).any():
        return prices
    load = np.where(np.isfinite(memory), judgement.peak_bytes / np.maximum(memory, 1.0), 0.0)
    unit = judgement.busy_s.sum() / max(1.0, d.group_bytes.sum())
    up = np.where(load > 1, np.maximum(prices, unit / 4) * (0.5 + load), prices * 0.8)
    limited: FloatArray = np.minimum(up, unit * PRICE_LIMIT)
    return limited


def by_load(
    d: PricingContext,
    rounds: int,
    step: float,
    factors: FloatArray,
    deadline_s: float,
) -> tuple[list[IntArray], FloatArray]:
    """Repeat: solve with run times times ``1 + factor``, judge, raise prices of busy devices.

    `factors`: shape (m,), where the prices start.
    Returns one placement per round, and the prices after the last.
    """
    places: list[IntArray] = []
    prices = np.zeros(d.problem.m)
    for r in range(rounds):
        if r and time.perf_counter() >= deadline_s:
            break
        costs = d.costs(d.problem.compute_s * (1.0 + factors))
        places.append(d.place(d.solve(costs, prices, None, deadline_s).choice))
        judgement = d.judge(OperatorPlan(places[-1]))
        busy = judgement.busy_s / max(judgement.busy_s.mean(), 1e-300)
        factors = factors * np.exp(step / (1 + r) * (busy - 1))
        factors = np.clip(factors, 1 / PRICE_LIMIT, PRICE_LIMIT)
        prices = raised_prices(d, prices, judgement)
    return places, factors


ROUNDING = 1e-9
"""Of the bound: what sums in another order can differ by."""


def serial_bound(d: PricingContext, deadline_s: float) -> float:
    """Seconds; 0 where nothing was proved in time or within the branches."""
    costs = d.costs(d.problem.compute_s)
    pbqp = placement_pbqp(d.problem, d.graph, costs, fanout=0.0)
    proved = solve_pbqp(pbqp, branch_limit=d.branch_limit, deadline_s=deadline_s).lower_bound
    return max(0.0, proved * (1 - ROUNDING)) if math.isfinite(proved) else 0.0


def improving(
    d: PricingContext, places: Iterable[IntArray], repair_moves: int, context: Context
) -> Iterator[Start]:
    """Each placement that is better than all before it, as judged.

    If the best of all does not fit the memories, local moves repair it.
    """
    best: Start | None = None
    for place in places:
        found = score_all(d.judge, [place])[0]
        if best is None or found.score < best.score:
            best = found
            yield best
    if best is not None and best.score.over_bytes > 0:
        yield improved(d, best, repair_moves, context, seed=context.seed)


def improved(
    d: PricingContext, start: Start, moves: int, context: Context, *, seed: int, heat: float = 0.0
) -> Start:
    """The end of a walk of local moves from `start`."""
    return improve(
        d.judge,
        d.graph.groups,
        start,
        moves=moves,
        heat=heat,
        seed=seed,
        deadline_s=context.deadline_s,
    )
