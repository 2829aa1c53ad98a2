"""Requests played again with every policy."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.requests.conformance import random_problem
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import listed, named_policy
from placewright.requests.policies import specification
from placewright.requests.problem import RequestProblem
from placewright.requests.replay import (
    Experience,
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
    assert choice.before == pytest.approx(judge(problem, worst).value)
    assert choice.value == pytest.approx(judge(problem, choice.plan).value)
    assert choice.value > choice.before + choice.noise
    again = replay(problem, choice.plan)
    assert again.value >= choice.value - 1e-12
    assert again.before == pytest.approx(choice.value)


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


def earned(problem: RequestProblem, plan: RequestPlan, less: float = 0.0) -> np.ndarray:
    """What comes of a policy: what its replay says, or less."""
    return judge(problem, plan).earned - less


def test_replays_that_miss_what_came_are_not_trusted() -> None:
    """Another policy has to gain more than that."""
    problem, worst = slow_and_accurate(80.0), named_policy("round-robin")
    trusted = replay(problem, worst, known=Experience(earned(problem, worst)))
    assert trusted.missed == pytest.approx(0.0)
    gain = trusted.value - (trusted.before or 0.0)
    for less, follows in ((0.1 * gain, True), (1.1 * gain, False), (-1.1 * gain, False)):
        choice = replay(problem, worst, known=Experience(earned(problem, worst, less)))
        assert choice.missed == pytest.approx(less)
        assert (choice.plan != worst) == follows


def test_a_change_that_does_not_come_true_is_taken_back() -> None:
    """Where the policy before is better than what came, by what its replays are known to miss."""
    problem = slow_and_accurate(80.0)
    old, new = named_policy("auto"), named_policy("edf-fastest")
    value = judge(problem, new).value - judge(problem, old).value

    def checked(less: float, missed: float = 0.0) -> RequestPlan:
        came = earned(problem, new, less)
        known = Experience(came, ((old, missed),), before=old, lead=100)
        choice = replay(problem, new, known=known)
        assert (choice.tried, choice.requests) == (2, 300)
        return choice.plan

    assert checked(0.0) == new
    assert checked(value + 0.1) == old
    assert checked(value + 0.1, missed=0.2) == new
    worst = named_policy("round-robin")
    best = replay(problem, worst).plan
    corrected = Experience(earned(problem, worst), ((best, 1.0),))  # among all others, too
    assert replay(problem, worst, known=corrected).plan != best


def test_a_change_is_seldom_taken_back_by_chance() -> None:
    """It is checked several times; here both policies decide alike, and what came is noisy."""
    problem = slow_and_accurate(80.0)
    old, new = named_policy("edf-fastest"), named_policy("edf-fastest-batch")
    usual = earned(problem, new)
    assert np.array_equal(usual, earned(problem, old), equal_nan=True)
    back = 0
    for seed in range(50):
        noise = np.random.default_rng(seed).normal(0.0, 0.1, len(usual))
        known = Experience(usual + noise, ((old, 0.0),), before=old, lead=100)
        back += replay(problem, new, known=known).plan == old
    assert back <= 4


def test_policies_that_were_taken_back_are_left_out() -> None:
    """For some time."""
    problem, worst = slow_and_accurate(80.0), named_policy("round-robin")
    best = replay(problem, worst).plan
    known = Experience(earned(problem, worst), barred=(best,))
    assert replay(problem, worst, known=known).plan not in (best, worst)


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


def test_policies_are_written_as_they_are_read() -> None:
    """By the names of tables; what differs from those behind it."""
    problem = slow_and_accurate(80.0)
    for plan in candidates(problem):
        assert specification(named_policy(plan_text(plan))) == specification(plan)
    names = {policy.name for policy in listed()}
    assert names - {"ms"} <= {plan_text(plan) for plan in candidates(problem)}
    for name in ("rolling(wait=0.4)", "random(order=sjf)", "edf-accurate(batching=True)"):
        assert plan_text(named_policy(name)) == name
