"""Wing 1: operators -> devices."""

from __future__ import annotations

from placewright.planning.contract import Simplifier
from placewright.planning.wing import package_wing


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
