"""How long a step of an adaptive run may take before its workers count as stuck."""

from __future__ import annotations

import math
from dataclasses import dataclass

from placewright.adapt.adaptation import Adaptation
from placewright.adapt.timeline import Timeline
from placewright.operators.judge import judge
from placewright.runtime.limits import SILENCE_STEPS, patience

LAST = 20
"""Steps that a typical one is the median of."""


@dataclass(slots=True)
class StepTimeout:
    """How long a step may take: many typical ones of its plan.

    Before a plan's first step the judge says what is typical, times what the plan before took over
    what he had said of it: survivors may well be a hundred times slower than all devices were.

    Attributes
    ----------
    least_s
        Seconds that every step may take.
    """

    least_s: float
    _plan: int = -1
    _judged_s: float = math.nan
    _pace: float = 1.0

    def step_limit_s(self, timeline: Timeline, adaptation: Adaptation) -> float:
        """Seconds after which a step of the plan in force is stuck."""
        if timeline.plans != self._plan:
            self._turn_to(timeline, adaptation)
        own_s = timeline.typical_s(LAST, plan=self._plan)
        typical_s = self._pace * self._judged_s if math.isnan(own_s) else own_s
        return patience(max(self.least_s, SILENCE_STEPS * typical_s))

    def _turn_to(self, timeline: Timeline, adaptation: Adaptation) -> None:
        """Another plan is in force: learn from the one before."""
        took_s = timeline.typical_s(LAST, plan=self._plan)
        if took_s > 0 and self._judged_s > 0:
            self._pace = max(1.0, took_s / self._judged_s)
        self._plan = timeline.plans
        self._judged_s = judge(adaptation.watch.problem(), adaptation.plan).value
