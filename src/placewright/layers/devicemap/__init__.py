"""Layer ranges of a language model -> the devices of a cluster, for generation.

A family of the layers wing, with a verb and a function of its own besides: ``devicemap``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.planning.wing import Conformance, Files, Planning, Views, package_wing

if TYPE_CHECKING:
    from placewright.layers import conformance
    from placewright.layers.devicemap import files, planners, views

    # What the parts must have is checked here: at run time they are imported by name.
    PARTS: tuple[Planning, Files, Views, Conformance] = (
        planners.PLANNING,
        files,
        views.VIEWS,
        conformance.DEVICE_MAP,
    )

DEVICE_MAP = package_wing(
    __name__,
    "layers of a language model -> devices",
    "problem.MapProblem",
    "problem.MapPlan",
    planning="planners.PLANNING",
    views="views.VIEWS",
    conformance="..conformance.DEVICE_MAP",
    command_line="",
)
