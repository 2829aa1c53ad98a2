"""Step timeout: how long a step may take before its workers count as stuck."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from placewright.adapt.timeline import Timeline
from placewright.runtime.limits import SILENCE_STEPS, patience

LAST = 20
"""Steps whose median is a typical one."""


@dataclass(slots=True)
class StepTimeout:
    """Allows many typical steps of the plan in force.

    Before a plan's first step its prediction stands for a typical one, times what the plan before
    took over its own prediction: the nodes that are left may be a hundred times slower than all
    were.

    `least_s`: seconds that every step may take.
    """

    least_s: float
    _plan: int = -1
    _predicted_s: float = math.nan
    _factor: float = 1.0

    def step_limit_s(self, timeline: Timeline, predicted_s: Callable[[], float]) -> float:
        """Seconds after which a step of the plan in force is stuck.

        `predicted_s`: predicts a step of the plan in force; called once per plan.
        """
        if timeline.plans != self._plan:
            took_s = timeline.typical_s(LAST, plan=self._plan)
            if took_s > 0 and self._predicted_s > 0:
                self._factor = max(1.0, took_s / self._predicted_s)
            self._plan, self._predicted_s = timeline.plans, predicted_s()
        own_s = timeline.typical_s(LAST, plan=self._plan)
        typical_s = self._factor * self._predicted_s if math.isnan(own_s) else own_s
        return patience(max(self.least_s, SILENCE_STEPS * typical_s))
