"""Minimum cut: the least total time where one thing runs at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.placements.search import improve, score_all
from placewright.operators.planners.pricing.cuts import Serial, serial_costs, swaps, two_devices
from placewright.operators.planners.pricing.graph import placement_graph
from placewright.operators.planners.pricing.priced import Desk, desk, raised
from placewright.operators.problem import Objective, OperatorProblem, Overlap, pairwise_only
from placewright.operators.structure.groups import groups_of
from placewright.planning import Context
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

    def supports(self, problem: OperatorProblem) -> str | None:
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
        d = desk(problem, placement_graph(problem), self.branch_limit, fanout=1.0)
        costs = serial_costs(problem, groups_of(problem))
        first, bound = self._least(d, costs, np.zeros(problem.m), context)
        places = [d.place(first), *self._cheaper_in_bytes(d, costs, first, context)]
        best = min(score_all(d.judge, places), key=lambda s: s.score)
        if best.score.over_bytes > 0:
            best = improve(
                d.judge,
                d.graph.groups,
                best,
                moves=self.repair_moves,
                heat=0.0,
                seed=context.seed,
                deadline_s=context.deadline_s,
            )
        return OperatorPlan(best.place, lower_bound_s=max(0.0, bound))

    def _cheaper_in_bytes(
        self, d: Desk, costs: Serial, first: IntArray, context: Context
    ) -> list[IntArray]:
        """Placements under rising prices of bytes, until one fits."""
        places, prices, place = list[IntArray](), np.zeros(d.problem.m), d.place(first)
        for _ in range(self.memory_rounds):
            judgement = d.judge(OperatorPlan(place))
            if judgement.feasible or context.remaining_s() <= 0:
                break
            prices = raised(d, prices, judgement)
            place = d.place(self._least(d, costs, prices, context)[0])
            places.append(place)
        return places

    def _least(
        self, d: Desk, costs: Serial, prices: FloatArray, context: Context
    ) -> tuple[IntArray, float]:
        """Devices of groups, and what no placement beats under these prices."""
        priced = Serial(
            costs.compute_s + d.group_bytes[:, None] * prices,
            costs.send_s,
            costs.maker,
            costs.readers,
        )
        if d.problem.m <= 2:
            return two_devices(priced)
        found = d.solve(priced.compute_s, np.zeros(d.problem.m), deadline_s=context.deadline_s)
        return swaps(priced, found.choice, context.deadline_s), self._bound(d, context)

    def _bound(self, d: Desk, context: Context) -> float:
        shared = desk(d.problem, d.graph, self.branch_limit, fanout=0.0)
        costs = shared.costs(d.problem.compute_s)
        found = shared.solve(costs, np.zeros(d.problem.m), deadline_s=context.deadline_s)
        return found.lower_bound * (1 - 1e-9)
