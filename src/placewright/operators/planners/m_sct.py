"""m-SCT: small communication times, within memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.setup import Setup, set_up
from placewright.operators.planners.m_etf import earliest_task_plan
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class MSct:
    """Earliest task first, but a device waits for the favourite child of what it ran last.

    Hanen, Munier 1995 with the memory of Jeon et al., SoCC 2020 (doi 10.1145/3419111.3421302),
    section 3.3. Each operator has at most one favourite child, and each child one parent whose
    favourite it is; while the child is ready, others get that device only if nothing else can
    start.

    Departure: they take favourites from a relaxed linear program; here the dearest transfers are
    matched first, which needs no solver. Else as `MEtf`.
    """

    @property
    def name(self) -> str:
        """``m-sct``."""
        return "m-sct"

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
        return earliest_task_plan(setup, favourite_children(setup), context.deadline_s)


def favourite_children(setup: Setup) -> IntArray:
    """Favourite consumer of every operator, -1 for none: dearest mean transfers matched first."""
    problem = setup.problem
    uses = np.diff(problem.consumer_offsets)
    parent = np.repeat(problem.tensor_producer, uses)
    took_s = setup.mean_latency_s + problem.tensor_bytes * setup.mean_seconds_per_byte
    favourite, claimed = np.full(problem.n, -1), np.zeros(problem.n, dtype=np.bool_)
    for e in np.argsort(-np.repeat(took_s, uses), kind="stable").tolist():
        i, j = parent[e], problem.consumers[e]
        if favourite[i] < 0 and not claimed[j]:
            favourite[i], claimed[j] = j, True
    return favourite
