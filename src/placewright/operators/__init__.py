"""Wing 1: operators -> devices."""

from __future__ import annotations

from typing import Any

from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Explanation, Files, Planning, Wing


def _planning() -> Planning:
    from placewright.operators import planning

    return planning


def _files() -> Files:
    from placewright.operators import files

    return files


def _explain(problem: Any, plan: Any, name: str) -> Explanation:
    from placewright.operators.explain import explain

    return explain(problem, plan, name)


WING = Wing(
    "operators",
    "operators -> devices",
    OperatorProblem,
    OperatorPlan,
    _planning,
    _files,
    explain=_explain,
)
