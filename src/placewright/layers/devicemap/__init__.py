"""Layer ranges of a language model -> the devices of a cluster, for generation.

A family of the layers wing, with a verb and a function of its own besides: ``devicemap``.
"""

from __future__ import annotations

from placewright.planning.wing import package_wing

DEVICE_MAP = package_wing(
    __name__,
    "layers of a language model -> devices",
    "problem.MapProblem",
    "problem.MapPlan",
    planning="planners.PLANNING",
    views="files.VIEWS",
    conformance="..conformance.DEVICE_MAP",
    command_line="",
)
