"""How long workers may take before they count as stuck."""

from __future__ import annotations

import math

from placewright.adapt.adaptation import Adaptation
from placewright.adapt.timeline import Timeline
from placewright.operators.judge import judge

SILENCE_STEPS = 20.0
"""A step that takes so many typical ones is stuck."""

ORDER_S = 30.0
"""Anything else that workers are told takes less on top of the patience, its bytes aside."""

SLOW_DISK = 20e6
"""Bytes per second at which state is read and written at the least."""

START_S = 60.0
"""Workers take less on top of the patience to come up and to meet."""

LAST = 20
"""Steps that a typical one is the median of."""


def step_limit_s(timeline: Timeline, adaptation: Adaptation | None, least_s: float) -> float:
    """Seconds after which a step is stuck, never fewer than `least_s`.

    Typical are the last steps of the plan in force. Before its first one, those of the plan before
    or what the judge says, whichever is more: survivors may well be a hundred times slower.
    """
    typical = timeline.typical_s(LAST, plan=timeline.plans)
    if math.isnan(typical):
        guesses = [timeline.typical_s(LAST), _judged_s(adaptation)]
        typical = max((g for g in guesses if g > 0), default=0.0)
    return max(least_s, SILENCE_STEPS * typical)


def _judged_s(adaptation: Adaptation | None) -> float:
    """By the costs that the run has seen."""
    if adaptation is None:
        return 0.0
    return judge(adaptation.watch.problem(), adaptation.plan).value


def order_limit_s(least_s: float, state_bytes: int) -> float:
    """Seconds after which any other order is stuck: a load or a snapshot of so much state."""
    return least_s + ORDER_S + state_bytes / SLOW_DISK
