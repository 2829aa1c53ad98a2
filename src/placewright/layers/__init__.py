"""Wing 2: layers -> parallelisation strategies over workers."""

from __future__ import annotations

from placewright.planning.wing import (
    CommandLine,
    Conformance,
    Explanation,
    Files,
    Planning,
    Views,
    Wing,
)


def _problem_type() -> type:
    from placewright.layers.problem import LayerProblem

    return LayerProblem


def _plan_type() -> type:
    from placewright.layers.plan import LayerPlan

    return LayerPlan


def _planning() -> Planning:
    from placewright.layers import planners

    return planners


def _files() -> Files:
    from placewright.layers import files

    return files


def _views() -> Views:
    from placewright.layers import views

    return views


def _command_line() -> CommandLine:
    from placewright.layers import commands

    return commands


def _conformance() -> Conformance:
    from placewright.layers import conformance

    return conformance


def _explain(problem: object, plan: object, name: str) -> Explanation:
    from placewright.layers.views import explain

    return explain(problem, plan, name)  # type: ignore[arg-type]


def _flow() -> Wing:
    from placewright.layers.flow import FLOW

    return FLOW


def _halda() -> Wing:
    from placewright.layers.halda import HALDA

    return HALDA


WING = Wing(
    "layers",
    "layers -> parallelisation strategies",
    _problem_type,
    _plan_type,
    _planning,
    _files,
    views=_views,
    command_line=_command_line,
    conformance=_conformance,
    explain=_explain,
    families=(_flow, _halda),
)
