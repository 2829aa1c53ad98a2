"""How long workers may take before they count as stuck."""

from __future__ import annotations

from placewright.adapt.adaptation import Adaptation
from placewright.adapt.timeline import Timeline
from placewright.operators.judge import judge

SILENCE_STEPS = 20.0
"""A step that takes so many typical ones is stuck."""

ORDER_S = 30.0
"""Anything else that workers are told takes less on top of the patience, its bytes aside."""

SLOW_DISK = 20e6
"""Bytes per second at which state is read and written at the least."""


def step_limit_s(timeline: Timeline, adaptation: Adaptation | None, least_s: float) -> float:
    """Seconds after which a step is stuck, never fewer than `least_s`.

    Typical are the last steps; before the first one, what the judge says of the plan.
    """
    typical = timeline.typical_s(20)
    if not typical > 0 and adaptation is not None:
        typical = judge(adaptation.problem, adaptation.plan).value
    return max(least_s, SILENCE_STEPS * typical)


def order_limit_s(least_s: float, state_bytes: int) -> float:
    """Seconds after which any other order is stuck: a load or a snapshot of so much state."""
    return least_s + ORDER_S + state_bytes / SLOW_DISK
