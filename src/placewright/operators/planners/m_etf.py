"""m-ETF: earliest task first, within memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.earliest_task import earliest_task
from placewright.operators.planners.lists.ranks import mean_upward_rank
from placewright.operators.planners.lists.setup import Setup, scheduled_plan, set_up, within_memory
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class MEtf:
    """Of all ready operators and devices with room, the pair that can start first.

    Hwang, Chow, Anger, Lee 1989 (doi 10.1137/0218016) with the memory of Jeon et al., SoCC 2020
    (doi 10.1145/3419111.3421302), section 3.2: a device whose memory would not hold the operator
    and its output is not considered. Ties by mean upward rank, then input order.

    Departures: devices may be unlike; transfers do not wait for each other; the first operator of
    a colocation group decides for it; without room anywhere, memory is passed over (and the
    judge says by how much).
    """

    @property
    def name(self) -> str:
        """``m-etf``."""
        return "m-etf"

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
        return earliest_task_plan(setup, np.full(problem.n, -1), context.deadline_s)


def earliest_task_plan(setup: Setup, favourite: IntArray, deadline_s: float) -> OperatorPlan:
    """The plan of earliest task first in which some consumers have a claim on a device."""
    rank = mean_upward_rank(
        setup.costs, setup.mean_compute_s, setup.mean_latency_s, setup.mean_seconds_per_byte
    )

    def build(budget_bytes: FloatArray) -> OperatorPlan:
        found = earliest_task(setup.costs, setup.rules(budget_bytes), rank, favourite)
        return scheduled_plan(setup.problem, *found)

    return within_memory(setup.problem, build, deadline_s)
