"""Any device, drawn by the seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.groups import groups_of
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class Random:
    """Every colocation group on an allowed device, drawn uniformly. O(n m)."""

    @property
    def name(self) -> str:
        """``random``."""
        return "random"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Always."""
        return None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            A group fits no device.
        """
        groups = groups_of(problem)
        draw = np.random.default_rng(context.seed).random(groups.allowed.shape)
        choice = np.where(groups.allowed, draw, -1.0).argmax(axis=1)
        return OperatorPlan(choice[groups.group])
