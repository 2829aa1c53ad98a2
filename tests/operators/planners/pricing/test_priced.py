"""A failed bound never costs a plan that was found."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest

from placewright.operators.conformance import tiny
from placewright.operators.judge import judge
from placewright.operators.planners.min_cut import MinCut
from placewright.operators.planners.pbqp import Pbqp
from placewright.operators.planners.pricing.priced import serial_bound
from placewright.planning.contract import Context, Planner, proposal_of
from placewright.solvers.pbqp import PbqpSolution, solve_pbqp


@pytest.mark.parametrize("planner", [Pbqp(), MinCut()], ids=lambda planner: planner.name)
@pytest.mark.parametrize("proved", [2.5, -math.inf, math.inf])
def test_a_solve_without_an_answer_is_a_bound_at_most(
    monkeypatch: pytest.MonkeyPatch, planner: Planner, proved: float
) -> None:
    """The heuristic may run into what is forbidden while branching is cut short."""
    if planner.name == "min-cut":
        pytest.importorskip("ortools")

    def astray(*arguments: object, **options: object) -> PbqpSolution:
        found = solve_pbqp(*arguments, **options)  # type: ignore[arg-type]
        if "exact" in options:  # a placement, and not the bound
            return found
        return replace(found, value=math.inf, lower_bound=proved, proved=False)

    monkeypatch.setattr(sys.modules[serial_bound.__module__], "solve_pbqp", astray)
    problem = tiny([[1.0, 2.0, 3.0]] * 3, [(0, 9.0, [1, 2])], overlap="serial")
    proposal = proposal_of(planner(problem, Context()))
    plan = proposal.plan
    assert judge(problem, plan).value == 3.0
    assert proposal.bound == pytest.approx(2.5 if proved == 2.5 else 0.0)
