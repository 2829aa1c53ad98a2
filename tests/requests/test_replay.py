"""Requests played again with every policy."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.requests.conformance import random_problem
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import named_policy
from placewright.requests.problem import RequestProblem
from placewright.requests.replay import (
    candidates,
    compared,
    last_requests,
    plan_text,
    replay,
)
from placewright.requests.service import service_of
from placewright.requests.stream import stream_of
from placewright.requests.views import explain


def slow_and_accurate(rate: float) -> RequestProblem:
    """One server, an accurate variant that keeps deadlines of few requests only, and a fast one."""
    latency_s = np.array([[0.01, 0.1]])[:, :, None] * np.arange(2)
    service = service_of(("a",), ("fast", "accurate"), (0.6, 0.9), latency_s)
    times = np.arange(400) / rate
    return RequestProblem(service, stream_of(times, 0.15), 400 / rate)


def test_another_policy_takes_over_where_it_is_clearly_better() -> None:
    """Round-robin answers one of ten requests at a load that the fast variant carries."""
    problem = slow_and_accurate(80.0)
    worst = named_policy("round-robin")
    choice = replay(problem, worst)
    assert choice.plan != worst
    assert choice.before == judge(problem, worst).value
    assert choice.value == judge(problem, choice.plan).value > choice.before + choice.noise
    again = replay(problem, choice.plan)
    assert again.value >= choice.value
    assert again.before == choice.value


def test_of_equals_the_one_that_decides_stays() -> None:
    """At a request a second the most accurate variant answers all."""
    problem = slow_and_accurate(1.0)
    plan = named_policy("edf-accurate")
    assert judge(problem, plan).value == pytest.approx(0.9)
    choice = replay(problem, plan)
    assert choice.plan == plan
    assert (choice.value, choice.noise) == (choice.before, 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("worth", [0.0, 2.0])
def test_never_worse_than_what_decides(seed: int, worth: float) -> None:
    """On the requests that were played."""
    problem = random_problem(seed)
    for plan in candidates(problem)[:3]:
        choice = replay(problem, plan, worth)
        judged = judge(problem, choice.plan)
        assert choice.value == pytest.approx(judged.value + worth * judged.success_rate)
        assert choice.before is not None
        assert choice.value >= choice.before


def test_gains_are_beside_the_first() -> None:
    """And its own is nothing."""
    problem = random_problem(1)
    own, other = compared(problem, [RequestPlan("edf"), RequestPlan("rolling")])
    assert own.gain == own.noise == 0
    assert not own.clear
    assert other.gain == pytest.approx(other.value - own.value)


def test_last_requests_keep_their_distances() -> None:
    """And begin at 0."""
    problem = random_problem(2)
    short = last_requests(problem, 10)
    times = problem.stream.arrival_s
    assert short.stream.arrival_s == pytest.approx(times[-10:] - times[-10])
    assert short.duration_s == pytest.approx(problem.duration_s - times[-10])
    assert len(last_requests(problem, 10**6).stream) == len(problem.stream)


def test_the_choice_of_a_policy_is_explained() -> None:
    """By all that were tried, best first."""
    problem = slow_and_accurate(80.0)
    found = explain(problem, named_policy("round-robin"), "policy")
    data = found.as_json()
    values = [each["effective_accuracy"] for each in data["policies"]]
    assert values == sorted(values, reverse=True)
    assert data["policies"][0]["verdict"] == "better by more than the noise"
    assert f"{data['policies'][0]['policy']} has more" in str(found)
    best = replay(problem, named_policy("round-robin")).plan
    assert "no other has clearly more" in str(explain(problem, best, "policy"))
    assert plan_text(RequestPlan("rolling", (("wait", 0.4),))) == "rolling(wait=0.4)"
