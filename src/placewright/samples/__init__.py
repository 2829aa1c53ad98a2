"""Wing 3: training samples -> edge nodes."""

from __future__ import annotations

from placewright.planning.wing import package_wing

WING = package_wing(
    __name__,
    "training samples -> edge nodes",
    "problem.SampleProblem",
    "plan.SamplePlan",
)
