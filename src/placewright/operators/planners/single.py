"""Everything on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class Single:
    """Everything on one device: the plan that every other has to beat.

    O(n). Operators that the device cannot run, or that are pinned elsewhere, make the plan
    infeasible: a single device is one device.

    Parameters
    ----------
    device
        Its name.
    """

    device: str

    @property
    def name(self) -> str:
        """``only:<device>``."""
        return f"only:{self.device}"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Whether the device exists."""
        return None if self.device in problem.device_names else f"no device {self.device!r}"

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            The device cannot run an operator.
        """
        device = problem.device_names.index(self.device)
        refused = np.flatnonzero(~problem.allowed()[:, device])
        if len(refused):
            raise InfeasibleError(
                f"{self.device!r} cannot run {problem.operator_names[refused[0]]!r}",
                where=problem.name,
                by=f"{len(refused)} of {problem.n} operators",
            )
        return OperatorPlan(np.full(problem.n, device))
