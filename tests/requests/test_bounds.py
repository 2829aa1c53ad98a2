"""Bounds reproduce published values, and no policy exceeds them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from placewright.planning.contract import Context
from placewright.requests import capacity
from placewright.requests.bounds import alone, alone_each, fluid, refined_bounds
from placewright.requests.conformance import random_problem, two_servers
from placewright.requests.judge import judge
from placewright.requests.lagrangian import ITERATIONS, lagrangian_bounds
from placewright.requests.planners import planners
from placewright.requests.problem import RequestProblem
from placewright.requests.readers.serving import serving_problem
from placewright.requests.stream import stream_of
from placewright.requests.windows import windows
from tests.published import published


def lagrangian(problem: RequestProblem, iterations: int = ITERATIONS) -> float | None:
    """The least of its bounds; None where a step would take too long."""
    found = lagrangian_bounds(problem, alone_each(problem), iterations=iterations)
    return min(found, default=None)


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
        priced = lagrangian(problem, 40)
        assert priced is not None
        top, most = min(alone(problem), fluid(problem), priced), fluid(problem, success=True)
        for planner in planners(problem).values():
            if planner.unsupported_reason(problem) is None:
                judged = judge(problem, planner(problem, Context(seed)))
                assert judged.value <= top + 1e-9
                assert judged.success_rate <= most + 1e-9


def test_the_lagrangian_bound_is_above_the_optimum_and_near_it() -> None:
    """Seven requests, whose optimum CP-SAT knows; random links are no part of either."""
    gaps = []
    for seed in range(12):
        problem = random_problem(seed, requests=7)
        problem = problem.replace(service=problem.service.replace(noise=0.0))
        optimum = windows(problem, size=7)
        found = lagrangian(problem)
        assert found is not None
        assert found >= optimum - 1e-5
        gaps.append(found / optimum - 1.0)
    assert np.mean(gaps) < 0.05


def test_ctrl_c_keeps_the_bounds_that_are_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated policy is not lost either; progress has shown each bound."""

    def interrupted(problem: RequestProblem) -> Iterator[tuple[str, float]]:
        bounds = refined_bounds(problem)
        yield next(bounds)
        yield next(bounds)
        raise KeyboardInterrupt

    monkeypatch.setattr(capacity, "refined_bounds", interrupted)
    problem, seen = random_problem(3), []
    result = capacity.played(
        problem, "edf-fastest", bound=True, progress=lambda **state: seen.append(state["what"])
    )
    assert seen == ["fluid", "lagrangian"] == list(result.bound_names)[1:]
    assert result.value <= result.bound == min(result.bound_names.values())


def test_a_simulated_policy_has_the_fluid_bound() -> None:
    """Without being asked for: it takes a second at most; prices are for those who ask."""
    problem = random_problem(3)
    result = capacity.played(problem, "edf-fastest")
    assert result.bound == min(fluid(problem), alone(problem))
    assert list(result.bound_names) == ["alone", "fluid"]


def test_requests_that_do_not_meet_are_in_no_batch_together() -> None:
    """One server, 120 ms alone and 75 ms each in a batch of four; one comes every 80 ms."""
    service = two_servers().subset(np.array([1]), np.array([1]))
    stream = stream_of(np.arange(50) * 0.08, 0.13)
    problem = RequestProblem(service, stream, 4.0)
    found = lagrangian(problem)
    assert found is not None
    assert 0.45 <= found < 0.46  # every second one, 0.9 each
    assert fluid(problem) > 0.59


def test_with_noise_it_bounds_the_expectation() -> None:
    """One request whose deadline is its mean time: in time every second time."""
    service = two_servers(noise=0.05).subset(np.array([0]), np.array([0]))
    problem = RequestProblem(service, stream_of([0.0], 0.010), 1.0)
    found = lagrangian(problem)
    assert found == pytest.approx(0.35, abs=0.005)


@pytest.mark.parametrize("deadline_s", [1e9, 1e308])
def test_deadlines_far_away_leave_the_fluid_bound(deadline_s: float) -> None:
    """A server of milliseconds could begin too many batches until then for any array."""
    problem = RequestProblem(two_servers(), stream_of([0.0, 1.0], deadline_s), 2.0)
    assert lagrangian(problem) is None
