"""Devices in turn."""

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
class RoundRobin:
    """Colocation groups, in topological order, to devices in turn. O(n m).

    A group that its device cannot run goes to the next one that can.
    """

    @property
    def name(self) -> str:
        """``round-robin``."""
        return "round-robin"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Always."""
        return None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            A group that no device can run.
        """
        groups, m = groups_of(problem), problem.m
        device = np.full(len(groups.first), -1)
        turn = 0
        for g in groups.group[problem.topology.order]:
            if device[g] < 0:
                device[g] = next(
                    d for d in ((turn + x) % m for x in range(m)) if groups.allowed[g, d]
                )
                turn += 1
        return OperatorPlan(device[groups.group])
