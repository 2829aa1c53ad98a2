"""`auto` keeps central EDF's success and does not read arrival times."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.planning.contract import Context
from placewright.planning.solving import solve
from placewright.requests import selection
from placewright.requests.conformance import random_problem, two_servers
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.policies.edf import Edf
from placewright.requests.policies.opportunity import Opportunity
from placewright.requests.policy import Specification
from placewright.requests.problem import RequestProblem
from placewright.requests.selection import Selected
from placewright.requests.stream import stream_of


def problem(arrival_s: np.ndarray) -> RequestProblem:
    """Deadlines of which some allow only the fastest variant."""
    deadline_s = np.random.default_rng(1).uniform(0.02, 0.3, len(arrival_s))
    return RequestProblem(two_servers(), stream_of(arrival_s, deadline_s), 10.0)


def chosen(arrival_s: np.ndarray) -> RequestPlan:
    """By a short trial."""
    return Selected(requests=400)(problem(arrival_s), Context())


def test_arrival_times_are_not_looked_at() -> None:
    """Requests of the same mix that all arrive in one second, or evenly, get the same plan."""
    even, burst = np.linspace(0.0, 9.9, 300), np.linspace(0.0, 1.0, 300)
    assert chosen(even) == chosen(burst)


def test_success_is_kept_at_every_load() -> None:
    """On arrivals that the choice has not seen, up to the noise of 1,500 requests."""
    for rate in (30, 90, 180):
        rng = np.random.default_rng(rate)
        tried = problem(np.sort(rng.uniform(0.0, 10.0, 10 * rate)))
        own = judge(tried, Selected(requests=1000, evaluations=60)(tried, Context()))
        central = judge(tried, Edf("fastest")(tried, Context()))
        assert own.success_rate >= central.success_rate - 0.015
        assert own.value >= central.value - 0.01


def test_one_server_is_not_kept_idle() -> None:
    """At a fifth of what the large variant allows `rolling` buys the small one: 0.71."""
    service = two_servers().subset(np.array([0]), np.array([0, 1]))
    tried = problem(np.linspace(0.0, 9.9, 50)).replace(service=service)
    judged = judge(tried, Selected(requests=400)(tried, Context()))
    assert judged.success_rate == 1.0
    assert judged.value > 0.85


@pytest.mark.parametrize("success", [0.999, 0.99])
def test_no_success_is_given_up_for_accuracy(
    monkeypatch: pytest.MonkeyPatch, success: float
) -> None:
    """Central EDF never fails, `rolling` once in a thousand or in a hundred, with 0.2 more."""

    def tried(policy: Specification, *_: object) -> selection._Trial:
        if isinstance(policy, Edf):
            return selection._Trial(np.ones(2), 0.7)
        return selection._Trial(np.full(2, success), 0.9)

    monkeypatch.setattr(selection, "_tried", tried)
    assert chosen(np.linspace(0.0, 9.9, 100)).policy == "edf"


@pytest.mark.parametrize(
    ("success", "other", "policy"),
    [(0.995, 0.999, "rolling"), (0.98, 0.97, "rolling"), (0.98, 0.99, "opportunity")],
)
def test_a_fit_is_tried_where_another_policy_fails_less(
    monkeypatch: pytest.MonkeyPatch, success: float, other: float, policy: str
) -> None:
    """Batching EDF, unless `rolling` has 99 % success; central EDF fails more than both."""

    def tried(policy: Specification, *_: object) -> selection._Trial:
        edf = other if isinstance(policy, Edf) and policy.batching else 0.9
        return selection._Trial(np.full(2, edf if isinstance(policy, Edf) else success), 0.7)

    monkeypatch.setattr(selection, "_tried", tried)
    monkeypatch.setattr(Selected, "_best", lambda *_: Opportunity())
    assert chosen(np.linspace(0.0, 9.9, 300)).policy == "rolling"
    monkeypatch.setattr(Selected, "_pairs", lambda *_: [[]])
    assert chosen(np.linspace(0.0, 9.9, 300)).policy == policy


def test_fitted_parameters_prove_their_success_on_other_arrivals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that sell success are fitted again with more weight on it, and then given up."""
    weights: list[float] = []

    def fitted(pairs: object, least: object, weight: float, *_: object) -> Opportunity:
        weights.append(weight)
        return Opportunity(price=(50.0,))

    monkeypatch.setattr(selection, "fitted", fitted)
    tried, own = problem(np.linspace(0.0, 9.9, 300)), Selected(requests=200)
    assert own._fitted(tried, [], np.ones((1, 2)), Context()) is None
    assert weights == sorted(weights)
    assert len(weights) == len(selection.FITS)


def test_nothing_is_tuned_where_no_answer_is_right() -> None:
    """Accuracies of zero are allowed."""
    problem = random_problem(0)
    service = problem.service.replace(accuracy=np.zeros(problem.service.variants))
    assert solve(problem.replace(service=service), "tuned").value == 0.0
