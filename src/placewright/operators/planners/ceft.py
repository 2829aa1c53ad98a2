"""CEFT: list scheduling by critical earliest finish times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.scheduling import priority_sequence
from placewright.operators.planners.lists.setup import set_up, within_memory
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.operators.structure.ceft import ceft
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class Ceft:
    """Operators by CEFT's way to the end, each to the device where its whole way ends first.

    Vasudevan, Gregg, arXiv 1701.08800, gives the tables: no means over devices, but for every
    operator and device the least time to the end over the best devices of all that follows,
    ``ceft_up(i, p)``. The list scheduler around them is ours: priority is the least
    ``ceft_up(i, p)`` over p, the device is that of least ``EFT(i, p) + ceft_up(i, p) - w(i, p)``
    with insertion into every gap. O(t m^2 + e m) and the gap search.
    """

    @property
    def name(self) -> str:
        """``ceft``."""
        return "ceft"

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
        setup, tables = set_up(problem), ceft(problem)
        sequence = priority_sequence(setup.costs, -tables.ceft_up_s.min(axis=1))
        usable = np.isfinite(tables.ceft_up_s)
        own_s = np.where(usable, problem.compute_s, 0.0)
        ahead_s = np.where(usable, tables.ceft_up_s, np.inf) - own_s

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            return setup.schedule(sequence, budget_bytes, ahead_s=ahead_s)

        return within_memory(problem, build, context.deadline_s)
