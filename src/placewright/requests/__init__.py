"""Wing 4: inference requests -> servers and model variants."""

from __future__ import annotations

from placewright.planning.contract import Direction
from placewright.planning.wing import package_wing

WING = package_wing(
    __name__,
    "inference requests -> servers and model variants",
    "problem.RequestProblem",
    "plan.RequestPlan",
    direction=Direction.MAXIMISE,
    unit="",
)
