"""Wing 1: operators -> devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.planning.contract import Simplifier
from placewright.planning.wing import Conformance, Files, Planning, Views, package_wing

if TYPE_CHECKING:
    from placewright.operators import conformance, files, planners, views

    # What the parts must have is checked here: at run time they are imported by name.
    PARTS: tuple[Planning, Files, Views, Conformance] = (
        planners,
        files,
        views,
        conformance,
    )


def _simplifier() -> Simplifier:
    from placewright.operators.planners.deployable import Deployable

    return Deployable()


WING = package_wing(
    __name__,
    "operators -> devices",
    "problem.OperatorProblem",
    "plan.OperatorPlan",
    command_line="",
    places_models=True,
    simplifier=_simplifier,
)
