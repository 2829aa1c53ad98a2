"""PBQP: least total time, compute and transfers added up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, final

from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pricing import (
    improving,
    pbqp_needs,
    pricing_context,
    serial_bound,
    within_memory,
)
from placewright.operators.problem import Objective, OperatorProblem, Overlap, pairwise_only
from placewright.planning.contract import Context, Needs, Proposal, Share, last_of


@final
@dataclass(frozen=True, slots=True)
class PbqpPlanner:
    """Placement as a partitioned boolean quadratic problem.

    Scholz, Eckstein 2002 (doi 10.1145/513829.513854); Anderson, Gregg, CGO 2018, for neural
    networks. Nodes are colocation groups, options are devices, node costs run times, edge costs
    transfer times. It minimises the *sum* of all times: the right question where one thing runs
    at a time (``overlap=serial``), and otherwise a plan that seldom leaves the fastest device.

    Every group that reads a tensor pays for its transfer, though readers on one device share it:
    the sum is never less than the truth. Under ``overlap=serial`` a second solve in which the
    readers share one transfer, never more than the truth, gives a lower bound.

    Memory: bytes get a price where the judge sees too many held, until the plan fits; if no
    price does it, local moves repair the best plan.

    Parameters
    ----------
    branch_limit
        Branches of the exact solve; past it the best assignment found is taken.
    memory_rounds
        How often the price of bytes is raised.
    repair_moves
        Local moves where the prices found nothing that fits.
    relayed_share
        Of the time to the deadline that it takes in ``auto``, where others come after it.
    """

    name: ClassVar[str] = "pbqp"
    branch_limit: int = 200
    memory_rounds: int = 10
    repair_moves: int = 1_000
    relayed_share: Share = 0.1

    unsupported_reason = staticmethod(pairwise_only)

    def needs(self, problem: OperatorProblem) -> Needs:
        """As `pbqp_needs`."""
        return pbqp_needs(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan; raises `InfeasibleError`: no placement has a link for every tensor."""
        left_s = context.remaining_s()
        if context.incumbent is not None and math.isfinite(left_s):
            kept_s = (1 - self.relayed_share) * max(0.0, left_s)
            context = replace(context, deadline_s=context.deadline_s - kept_s)
        found, interrupted = last_of(self.plans(problem, context))
        return replace(found, interrupted=interrupted)

    def plans(self, problem: OperatorProblem, context: Context) -> Iterator[Proposal[OperatorPlan]]:
        """Ever better plans, the last one with what was proved; raises as a call does."""
        d = pricing_context(problem, self.branch_limit)
        costs = d.costs(problem.compute_s)
        rounds = within_memory(d, costs, self.memory_rounds, None, context.deadline_s)
        first = next(rounds)
        note = "" if first.proved else "branch limit reached: total time not proved least"
        places = (d.place(solution.choice) for solution in chain([first], rounds))
        for best in improving(d, places, self.repair_moves, context):
            plan = best.plan()
            yield Proposal(plan, note=note)
        if problem.overlap is Overlap.SERIAL and problem.objective is Objective.LATENCY:
            yield Proposal(plan, serial_bound(d, context.deadline_s), note=note)
