"""Bounds reproduce published values, and no policy passes them."""

from __future__ import annotations

import pytest

from placewright.planning.contract import Context
from placewright.requests.bounds import alone, fluid
from placewright.requests.conformance import random_problem
from placewright.requests.judge import judge
from placewright.requests.planners import planners
from placewright.requests.readers.serving import serving_problem
from tests.published import published


@pytest.mark.parametrize(
    ("file", "scenario", "value"),
    [
        ("ramsis_image", "w60_slo150_r1200", 0.80367),
        ("ramsis_image", "w60_slo150_r3600", 0.652711),
        ("ramsis_image", "w60_slo500_r2800", 0.74385),
        ("proteus_a", "medium_3", 0.917046),
    ],
)
def test_the_fluid_bound_has_its_published_value(file: str, scenario: str, value: float) -> None:
    """Seed 0, to six digits."""
    problem = serving_problem(published(f"serving/{file}.json"), scenario)
    assert fluid(problem) == pytest.approx(value, abs=1e-6)


def test_no_policy_passes_a_bound() -> None:
    """Random problems without noise, every planner; the fluid bound of success too."""
    for seed in range(6):
        problem = random_problem(seed)
        problem = problem.replace(service=problem.service.replace(noise=0.0))
        top, most = min(alone(problem), fluid(problem)), fluid(problem, success=True)
        for planner in planners(problem).values():
            if planner.unsupported_reason(problem) is None:
                judged = judge(problem, planner(problem, Context(seed)))
                assert judged.value <= top + 1e-9
                assert judged.success_rate <= most + 1e-9
