"""HEFT that reserves time on channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from placewright.numerics.arrays import FloatArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.heft import heft_sequence
from placewright.operators.planners.lists.reserving import reserving_schedule
from placewright.operators.planners.lists.setup import scheduled_plan, set_up, within_memory
from placewright.operators.problem import Links, OperatorProblem, pairwise_only
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class HeftContended:
    """HEFT whose earliest finish times know that a channel carries one transfer at a time.

    After Sinnen, Sousa, IEEE TPDS 16(6), 2005, doi 10.1109/TPDS.2005.64: for every candidate
    device the operator's missing inputs are booked in the gaps of their channels, in the order
    in which they were made; the device with the earliest finish keeps its bookings. O(e m) gap
    searches. Ranks, ties, groups and memory as in HEFT here.

    Departures: channels are those of the problem (one hop, possibly shared), without routing;
    a tensor is sent to a device once.
    """

    @property
    def name(self) -> str:
        """``heft-contended``."""
        return "heft-contended"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Where transfers wait for each other; else it is HEFT."""
        free = problem.links is Links.FREE
        return "links are free: the same as heft" if free else pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            An operator that no linked device can run.
        """
        setup = set_up(problem)
        sequence = heft_sequence(setup)
        channels = len(problem.channel_names)

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            rules = setup.rules(budget_bytes)
            return scheduled_plan(
                problem, *reserving_schedule(setup.costs, rules, sequence, channels)
            )

        return within_memory(problem, build, context.deadline_s)
