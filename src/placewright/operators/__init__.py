"""Wing 1: operators -> devices."""

from __future__ import annotations

from typing import Any

from placewright.planning.contract import Simplifier
from placewright.planning.wing import Conformance, Explanation, Files, Planning, Views, Wing


def _problem_type() -> type:
    from placewright.operators.problem import OperatorProblem

    return OperatorProblem


def _plan_type() -> type:
    from placewright.operators.plan import OperatorPlan

    return OperatorPlan


def _planning() -> Planning:
    from placewright.operators import planners

    return planners


def _files() -> Files:
    from placewright.operators import files

    return files


def _conformance() -> Conformance:
    from placewright.operators import conformance

    return conformance


def _explain(problem: Any, plan: Any, name: str) -> Explanation:
    from placewright.operators.explain import explain

    return explain(problem, plan, name)


def _views() -> Views:
    from placewright.operators import views

    return views


def _simplifier() -> Simplifier:
    from placewright.operators.planners.deployable import Deployable

    return Deployable()


WING = Wing(
    "operators",
    "operators -> devices",
    _problem_type,
    _plan_type,
    _planning,
    _files,
    views=_views,
    conformance=_conformance,
    explain=_explain,
    places_models=True,
    simplifier=_simplifier,
)
