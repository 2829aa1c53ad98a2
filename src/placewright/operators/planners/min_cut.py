"""Minimum cut: the least total time where one thing runs at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pricing.cuts import Serial, serial_costs, swaps, two_devices
from placewright.operators.planners.pricing.finds import best_finds
from placewright.operators.planners.pricing.graph import placement_graph
from placewright.operators.planners.pricing.priced import PricingContext, desk, raised
from placewright.operators.planners.pricing.serial_bound import serial_bound
from placewright.operators.problem import Objective, OperatorProblem, Overlap, pairwise_only
from placewright.operators.structure.groups import groups_of
from placewright.planning.anytime import last_of
from placewright.planning.contract import Context
from placewright.solvers.cp_sat import installed


@final
@dataclass(frozen=True, slots=True)
class MinCut:
    """Exact for two devices, exchanges between pairs of devices for more.

    Stone, IEEE TSE SE-3(1), 1977 (doi 10.1109/TSE.1977.233840) for two processors; alpha-beta
    swaps of Boykov, Veksler, Zabih, IEEE TPAMI 23(11), 2001 (doi 10.1109/34.969114) beyond. A
    node per tensor and direction makes the cut exact where a tensor with several readers is sent
    once (proof in `pricing.cuts`). One max-flow per exchange, O(groups + tensor uses) arcs.

    Beyond two devices it starts from the PBQP that `Pbqp` solves, goes through all pairs until
    no exchange helps, and takes its lower bound from the PBQP in which readers share a transfer.

    Memory: bytes get a price where the judge sees too many held; if no price does it, local moves
    repair the best plan. The bound is that without memory limits.

    Parameters
    ----------
    branch_limit
        Branches of each PBQP.
    memory_rounds
        How often the price of bytes is raised.
    repair_moves
        Local moves where the prices found nothing that fits.
    """

    branch_limit: int = 200
    memory_rounds: int = 12
    repair_moves: int = 1_000

    @property
    def name(self) -> str:
        """``min-cut``."""
        return "min-cut"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Serial latency over links, with OR-tools."""
        if problem.overlap is not Overlap.SERIAL or problem.objective is not Objective.LATENCY:
            return "more than one thing runs at a time"
        if not installed():
            return "ortools is not installed (pip install 'placewright[exact]')"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            No placement has a link for every tensor.
        MissingDependencyError
            OR-tools is not installed.
        """
        plan, ended = last_of(self._finds(problem, context))
        return replace(plan, note=ended)

    def _finds(self, problem: OperatorProblem, context: Context) -> Iterator[OperatorPlan]:
        """Ever better plans, the last one with what was proved."""
        d = desk(problem, placement_graph(problem), self.branch_limit, fanout=1.0)
        costs, bound_s = serial_costs(problem, groups_of(problem)), 0.0
        if problem.m <= 2:
            exact, bound_s = two_devices(costs)
            first = iter([exact])
        else:
            first = self._cheaper(d, costs, context)
        places = self._places(d, costs, first, context)
        for best in best_finds(d, places, self.repair_moves, context):
            plan = replace(best.plan(), lower_bound_s=max(0.0, bound_s))
            yield plan
        if problem.m > 2:
            yield replace(plan, lower_bound_s=serial_bound(d, context.deadline_s))

    def _places(
        self, d: PricingContext, costs: Serial, first: Iterator[IntArray], context: Context
    ) -> Iterator[IntArray]:
        """Those of the first choices, then under rising prices of bytes, until one fits."""
        prices, place = np.zeros(d.problem.m), np.zeros(d.problem.n, dtype=np.int64)
        for choice in first:
            place = d.place(choice)
            yield place
        with suppress(InfeasibleError):  # prices may lead the solver astray: what it found stands
            for _ in range(self.memory_rounds):
                judgement = d.judge(OperatorPlan(place))
                if judgement.feasible or context.remaining_s() <= 0:
                    return
                prices = raised(d, prices, judgement)
                dear = costs.compute_s + d.group_bytes[:, None] * prices
                for choice in self._cheaper(d, replace(costs, compute_s=dear), context):
                    place = d.place(choice)
                    yield place

    def _cheaper(self, d: PricingContext, costs: Serial, context: Context) -> Iterator[IntArray]:
        """Ever cheaper devices of groups; on two devices the cheapest at once."""
        if d.problem.m <= 2:
            yield two_devices(costs)[0]
        else:
            found = d.solve(costs.compute_s, np.zeros(d.problem.m), deadline_s=context.deadline_s)
            yield from swaps(costs, found.choice, context.deadline_s)
