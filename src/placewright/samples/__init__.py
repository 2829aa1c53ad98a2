"""Wing 3: training samples -> edge nodes."""

from __future__ import annotations

from typing import Any

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
    from placewright.samples.problem import SampleProblem

    return SampleProblem


def _plan_type() -> type:
    from placewright.samples.plan import SamplePlan

    return SamplePlan


def _planning() -> Planning:
    from placewright.samples import planners

    return planners


def _files() -> Files:
    from placewright.samples import files

    return files


def _views() -> Views:
    from placewright.samples import views

    return views


def _command_line() -> CommandLine:
    from placewright.samples import commands

    return commands


def _conformance() -> Conformance:
    from placewright.samples import conformance

    return conformance


def _explain(problem: Any, plan: Any, name: str) -> Explanation:
    from placewright.samples.views import explain

    return explain(problem, plan, name)


WING = Wing(
    "samples",
    "training samples -> edge nodes",
    _problem_type,
    _plan_type,
    _planning,
    _files,
    views=_views,
    command_line=_command_line,
    conformance=_conformance,
    explain=_explain,
)
