"""Wing 4: inference requests -> servers and model variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.planning.contract import Direction
from placewright.planning.wing import CommandLine, Conformance, Files, Planning, Views, Wing

if TYPE_CHECKING:
    from placewright.requests.views import RequestExplanation


def _problem_type() -> type:
    from placewright.requests.problem import RequestProblem

    return RequestProblem


def _plan_type() -> type:
    from placewright.requests.plan import RequestPlan

    return RequestPlan


def _planning() -> Planning:
    from placewright.requests import planners

    return planners


def _files() -> Files:
    from placewright.requests import files

    return files


def _views() -> Views:
    from placewright.requests import views

    return views


def _command_line() -> CommandLine:
    from placewright.requests import commands

    return commands


def _conformance() -> Conformance:
    from placewright.requests import conformance

    return conformance


def _explain(problem: Any, plan: Any, name: str) -> RequestExplanation:
    from placewright.requests.views import explain

    return explain(problem, plan, name)


WING = Wing(
    "requests",
    "inference requests -> servers and model variants",
    _problem_type,
    _plan_type,
    _planning,
    _files,
    direction=Direction.MAXIMISE,
    unit="",
    views=_views,
    command_line=_command_line,
    conformance=_conformance,
    explain=_explain,
)
