"""HEFT: heterogeneous earliest finish time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.ranks import mean_upward_rank
from placewright.operators.planners.lists.scheduling import priority_sequence
from placewright.operators.planners.lists.setup import Setup, set_up, within_memory
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class Heft:
    """Operators by mean upward rank, each to the device on which it ends first.

    Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002, doi 10.1109/71.993206. O(e m) and the gap
    search. Means are over the devices that can run an operator and over ordered pairs of
    *different* devices; insertion looks into every gap; ties by topological position (first in,
    first out), equal finish times to the earlier device.

    Departures: a tensor with several consumers on one device is sent there once; the first
    operator of a colocation group decides for its group; a device without room for the group's
    resident bytes and the operator's outputs is passed over while another has room.
    """

    @property
    def name(self) -> str:
        """``heft``."""
        return "heft"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Where tensors go over links."""
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            An operator that no linked device can run.
        """
        setup = set_up(problem)
        sequence = heft_sequence(setup)

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            return setup.schedule(sequence, budget_bytes)

        return within_memory(problem, build, context.deadline_s)


def heft_sequence(setup: Setup) -> IntArray:
    """Operators by (mean upward rank, topological position)."""
    rank = mean_upward_rank(
        setup.costs, setup.mean_compute_s, setup.mean_latency_s, setup.mean_seconds_per_byte
    )
    return priority_sequence(setup.costs, -rank)
