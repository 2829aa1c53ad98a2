"""Wing 4: inference requests -> servers and model variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.planning.contract import Direction
from placewright.planning.wing import package_wing

if TYPE_CHECKING:
    from placewright.planning.wing import CommandLine, Conformance, Files, Planning, Views
    from placewright.requests import commands, conformance, files, planners, views

    # What the parts must have is checked here: at run time they are imported by name.
    PARTS: tuple[Planning, Files, Views, Conformance, CommandLine] = (
        planners,
        files,
        views,
        conformance,
        commands,
    )

WING = package_wing(
    __name__,
    "inference requests -> servers and model variants",
    "problem.RequestProblem",
    "plan.RequestPlan",
    direction=Direction.MAXIMISE,
    unit="",
)
