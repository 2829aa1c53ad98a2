"""Bounds reproduce published values, and no policy exceeds them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from placewright.planning.contract import BoundContext, Context
from placewright.planning.solving import compare
from placewright.requests import capacity
from placewright.requests.bounds import alone, alone_each, fluid, refined_bounds, windows
from placewright.requests.conformance import random_problem, two_servers
from placewright.requests.judge import judge
from placewright.requests.lagrangian import ITERATIONS, lagrangian_bounds
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import planners
from placewright.requests.problem import RequestProblem
from placewright.requests.readers import serving_problem
from placewright.requests.service import service_of
from placewright.requests.stream import stream_of
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

    def interrupted(problem: RequestProblem, known: BoundContext) -> Iterator[tuple[str, float]]:
        bounds = refined_bounds(problem, known)
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


def test_luck_with_noise_passes_no_bound_of_a_result() -> None:
    """Every second stream the request is in time, which is twice the expectation."""
    service = two_servers(noise=0.05).subset(np.array([0]), np.array([0]))
    values = set()
    for seed in range(8):
        problem = RequestProblem(service, stream_of([0.0], 0.010), 1.0, noise_seed=seed)
        name = "shortest-queue"  # does not refuse what is late on a bad day
        for found in (compare(problem, name), capacity.played(problem, name, bound=True)):
            values.add(found.value)
            assert found.value <= found.bound
    assert values == {0.0, 0.7}


def test_the_link_has_no_noise() -> None:
    """Half a deviation of the batch is left: so many are in time, however long the link takes."""
    n, noise = 60, 0.1
    service = service_of(
        tuple(f"s{k}" for k in range(n)),
        ("v",),
        np.ones(1),
        np.repeat([[[0.0, 1.0]]], n, axis=0),
        round_trip_s=np.full(n, 10.0),
        noise=noise,
    )
    problem = RequestProblem(service, stream_of(np.zeros(n), 11.0 + noise / 2), 1.0)
    found = lagrangian(problem)
    assert found is not None
    assert 0.5 * (1 + math.erf(0.5 / math.sqrt(2.0))) <= found < 0.7
    values = [
        judge(problem.replace(noise_seed=seed), RequestPlan("edf", (("quantile", 0.0),))).value
        for seed in range(20)
    ]
    assert np.mean(values) == pytest.approx(found, abs=0.05)


@pytest.mark.parametrize("noise", [1 / 3, 0.45])
def test_large_noise_makes_no_time_negative(noise: float) -> None:
    """Batches end after they begin, and no policy passes a bound."""
    for seed in range(3):
        problem = random_problem(seed)
        problem = problem.replace(service=problem.service.replace(noise=noise))
        answers = judge(problem, RequestPlan("edf")).answers
        served = answers.server >= 0
        assert (answers.end_s > answers.start_s)[served].all()
        value = float(answers.succeeded(problem).mean())
        assert value <= fluid(problem, success=True) * 1.05
        assert alone(problem) <= 1.0


@pytest.mark.parametrize("deadline_s", [1e9, 4.6e18, 1e308])
def test_deadlines_far_away_leave_the_fluid_bound(deadline_s: float) -> None:
    """A server of milliseconds could begin too many batches until then for any array.

    Nor does a solver of whole microseconds have numbers that large.
    """
    problem = RequestProblem(two_servers(), stream_of([0.0, 1.0], deadline_s), 2.0)
    assert lagrangian(problem) is None
    assert windows(problem) == pytest.approx(problem.service.accuracy.max())


def best(problem: RequestProblem) -> float:
    """The sum of accuracies of the best schedule: every batch on every server in every order."""
    p, s, n = problem, problem.service, len(problem.stream)
    arrival_s, due_s = p.stream.arrival_s, p.stream.due_s

    def rest(left: frozenset[int], free_s: tuple[float, ...]) -> float:
        value = 0.0
        for size in range(1, min(len(left), s.max_batch) + 1):
            for batch in combinations(sorted(left), size):
                if len({int(p.stream.family[i]) for i in batch}) > 1:
                    continue
                for k in range(s.servers):
                    start_s = max(free_s[k], *(arrival_s[i] for i in batch), 0.0)
                    for v in np.flatnonzero(s.family == p.stream.family[batch[0]]):
                        end_s = start_s + s.latency_s[k, v, size]
                        kept = [
                            i
                            for i in batch
                            if end_s <= due_s[i] + 1e-9
                            and s.accuracy[v] >= p.stream.min_accuracy[i]
                        ]
                        if not kept:
                            continue
                        after = (*free_s[:k], end_s, *free_s[k + 1 :])
                        later = rest(left - frozenset(batch), after)
                        value = max(value, len(kept) * float(s.accuracy[v]) + later)
        return value

    return rest(frozenset(range(n)), (0.0,) * s.servers)


@pytest.mark.parametrize("seed", range(6))
def test_one_window_is_the_optimum(seed: int) -> None:
    """Four requests in a tenth of a second, times in whole milliseconds."""
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.integers(0, 60, 4)) / 1000
    deadline_s = rng.integers(15, 130, 4) / 1000
    floor = rng.choice([0.0, 0.8], 4)
    stream = stream_of(arrival_s, deadline_s, min_accuracy=floor)
    problem = RequestProblem(two_servers(), stream, 0.1)
    assert windows(problem) == pytest.approx(best(problem) / 4, abs=1e-5)


def test_a_batch_that_is_faster_than_a_smaller_one() -> None:
    """Three late requests fill the batch that keeps the deadline of the fourth."""
    service = two_servers()
    latency_s = service.latency_s.copy()
    latency_s[:, :, 4] = 0.002
    stream = stream_of([0.0, 0.0, 0.0, 0.01], [0.001, 0.001, 0.001, 0.005])
    problem = RequestProblem(service.replace(latency_s=latency_s), stream, 0.1)
    assert windows(problem) == pytest.approx(0.9 / 4)


def test_a_latency_of_ages_is_none_that_runs() -> None:
    """In microseconds it has more digits than the solver's numbers."""
    service = two_servers()
    latency_s = service.latency_s.copy()
    latency_s[:, -1, 2] = 5e299
    stream = stream_of([0.0, 0.0], [0.005, 0.5])
    problem = RequestProblem(service.replace(latency_s=latency_s), stream, 0.1)
    assert windows(problem) == pytest.approx(best(problem) / 2, abs=1e-5)


def test_no_policy_passes_the_windows() -> None:
    """Random problems, all planners, noise and loading included."""
    for seed in range(3):
        problem = random_problem(seed, 16)
        top = windows(problem)
        for planner in planners(problem).values():
            if planner.unsupported_reason(problem) is None:
                assert judge(problem, planner(problem, Context(seed))).value <= top + 1e-6


def test_accuracies_are_not_rounded_down() -> None:
    """One request that is answered: the bound is its accuracy, which has more digits than units."""
    service = two_servers()
    service = service.replace(accuracy=service.accuracy - 0.6e-6)
    problem = RequestProblem(service, stream_of([0.0], [10.0]), 1.0)
    assert windows(problem) >= service.accuracy.max()
