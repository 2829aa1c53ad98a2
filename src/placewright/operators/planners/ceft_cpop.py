"""CEFT-CPOP: CPOP with CEFT's critical path and devices."""

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
class CeftCpop:
    """The critical path on CEFT's devices, the rest by priority and earliest finish time.

    Vasudevan, Gregg, arXiv 1701.08800. CPOP puts the critical path of mean costs on one device;
    CEFT names both the path and a device for each of its operators. Priority is the longest way
    through an operator on its best device, ``min over p of ceft(i, p) + ceft_up(i, p) - w(i, p)``;
    insertion into every gap. O(t m^2 + e m) and the gap search.

    Departure: a path operator whose colocation group was placed before follows its group.
    """

    @property
    def name(self) -> str:
        """``ceft-cpop``."""
        return "ceft-cpop"

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
        sequence = priority_sequence(setup.costs, -tables.through_s.min(axis=1))
        forced = np.full(problem.n, -1, dtype=np.int64)
        forced[tables.path] = tables.path_devices

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            return setup.schedule(sequence, budget_bytes, forced=forced)

        return within_memory(problem, build, context.deadline_s)
