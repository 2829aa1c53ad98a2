"""The policy that a server chooses for itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError, UnknownNameError
from placewright.planning.contract import Context
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import listed, named_policy
from placewright.requests.problem import RequestProblem
from placewright.requests.replay import PolicyChoice
from placewright.requests.service import Service, service_of
from placewright.requests.serving import auto
from placewright.requests.serving.auto import AutoPolicy, Learner, streams_like
from placewright.requests.serving.commands import _policy
from placewright.requests.serving.server import ServingOptions, serve
from placewright.requests.stream import stream_of
from tests.requests.serving.models import family
from tests.requests.serving.test_server import body, infer, until


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that are played in a moment."""
    monkeypatch.setattr(auto, "REQUESTS", 300)
    monkeypatch.setattr(auto, "ROUNDS", ((150, 8),))


def service(**given: Any) -> Service:
    """Three servers and three variants, the accurate ones slower."""
    alone = np.array([0.01, 0.02, 0.05])[None, :] / np.array([1.0, 0.6, 0.3])[:, None]
    latency_s = alone[:, :, None] * (0.5 + 0.5 * np.arange(5))
    latency_s[:, :, 0] = 0.0
    return service_of(("a", "b", "c"), ("x", "y", "z"), (0.7, 0.8, 0.9), latency_s, **given)


def expected(rate: float, seed: int = 0) -> RequestProblem:
    """Requests at this rate."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 300 / rate, 300))
    return RequestProblem(
        service(), stream_of(times, rng.uniform(0.05, 0.3, 300)), 300 / rate, name="expected"
    )


@pytest.mark.parametrize(("rate", "worth"), [(60.0, 2.0), (250.0, 0.0)])
def test_no_policy_that_ships_is_better_on_like_requests(rate: float, worth: float) -> None:
    """By more than a hundredth of what the user prefers, on requests that were not looked at."""
    problem = expected(rate)
    choice = AutoPolicy(problem, worth).choose(problem.service)
    streams = [expected(rate, seed) for seed in (1, 2)]

    def worthy(plan: Any) -> float:
        found = [judge(each, plan) for each in streams]
        return float(np.mean([each.value + worth * each.success_rate for each in found]))

    others = [p for p in listed() if p.unsupported_reason(problem) is None]
    best = max(worthy(policy(problem, Context())) for policy in others)
    assert worthy(choice.plan) >= 0.985 * best
    assert choice.value == choice.effective_accuracy + worth * choice.success_rate


def test_success_that_is_worth_more_is_not_less() -> None:
    """The user says how accuracy is exchanged for it."""
    problem = expected(150.0)
    free, dear = (AutoPolicy(problem, worth).choose(problem.service) for worth in (0.0, 100.0))
    assert dear.success_rate >= free.success_rate
    assert dear.effective_accuracy <= free.effective_accuracy


def test_expected_requests_are_of_families_that_are_served() -> None:
    """Also of any size of an open dimension; others are refused by name."""
    sized = service(family_names=("all@n=4", "all@n=8"), family=np.array([0, 0, 1]))
    for stream in streams_like(expected(50.0), sized):
        assert set(stream.stream.family.tolist()) == {0, 1}
    named = expected(50.0).replace(service=service(family_names=("all@home",)))
    sized = service(family_names=("all@home@n=4", "all@home@n=8"), family=np.array([0, 0, 1]))
    assert {f for each in streams_like(named, sized) for f in each.stream.family} == {0, 1}
    other = service(family_names=("cats",))
    with pytest.raises(UnknownNameError, match="unknown family 'all'"):
        AutoPolicy(expected(50.0)).choose(other)


def test_a_server_decides_by_what_it_has_chosen_then_by_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before clients are listened to, and again for its own requests, in another process."""
    monkeypatch.setattr(auto, "LEAST", 40)
    monkeypatch.setattr(auto, "LEAST_S", 0.0)
    monkeypatch.setattr(auto, "LOOK_S", 0.05)
    problem = expected(60.0)
    problem = problem.replace(service=service(family_names=("double",)))
    options = ServingOptions(port=0, policy=AutoPolicy(problem, 0.5))
    with serve([family()], {"a": 1.0}, options) as running:
        dispatcher: Any = running.dispatcher
        (plan,) = dispatcher.make_policy.args
        chosen = {"policy": plan.policy, "parameters": dict(plan.parameters)}
        assert chosen.items() <= dict(dispatcher.decided_by).items()
        assert "before" not in dispatcher.decided_by
        for _ in range(50):
            infer(running, body())
        until(lambda: "before" in dispatcher.decided_by, 300)
        facts = dispatcher.decided_by
        assert 40 <= facts["requests"] <= 50
        assert facts["value"] >= facts["before"] > 0.5
        (plan,) = dispatcher.make_policy.args
        assert facts["policy"] == plan.policy


def test_begins_with_one_policy_for_all() -> None:
    """Where nothing is expected nothing is played before clients are listened to."""
    assert AutoPolicy().choose(service()) is None


def come(
    learner: Learner, count: int, from_s: float, family: str = "all", accuracy: float = 0.0
) -> None:
    """Rows of a thousandth of a second each, answered in time where there is an accuracy."""
    for k in range(count):
        number = learner._next
        learner.note(number, family, from_s + k / 1000, 0.1, 0.0, 0.5, 0.5, 8.0)
        if accuracy:
            learner.answered(number, accuracy)


def test_a_server_learns_again_when_it_has_seen_as_much_again() -> None:
    """At first after some requests and seconds; a choice is followed by a rest."""
    learner = Learner(named_policy("auto"))
    known = service(family_names=("all", "cats"), family=np.array([0, 0, 1]))
    come(learner, auto.LEAST - 1, 100.0)
    assert not learner.due(200.0)
    come(learner, 1, 100.5)
    assert not learner.due(100.0 + auto.LEAST_S / 2)
    assert learner.due(200.0)
    assert learner.window(known, 200.0) is not None
    learner.rest(200.0, 1.0)
    come(learner, auto.LEAST, 200.0)
    assert not learner.due(200.5)
    assert learner.due(201.0 + auto.RESTS)
    come(learner, 2 * auto.WINDOW, 300.0, "cats")
    come(learner, 10, 308.0, "gone")
    found = learner.window(known, 310.0)
    assert found is not None
    assert set(found[0].stream.family.tolist()) == {1}
    assert len(found[0].stream) == 2 * auto.WINDOW  # all of the last ten seconds
    come(learner, 10, 400.0, "gone")
    found = learner.window(known, 500.0)
    assert found is not None
    assert len(found[0].stream) == auto.WINDOW - 20  # where they are few, so many
    learner.rest(500.0, 0.0)
    come(learner, auto.WINDOW // 2, 600.0, "gone")
    assert learner.due(700.0)
    come(learner, auto.WINDOW, 600.0, "gone")
    assert learner.window(known, 700.0) is None


def test_what_came_is_known_of_rows_that_are_due() -> None:
    """Of those that the policy which decides had decided."""
    learner = Learner(named_policy("auto"), success_worth=0.5)
    come(learner, 400, 100.0, accuracy=0.8)
    come(learner, 400, 100.4)
    found = learner.window(service(), 200.0)
    assert found is not None
    earned = found[1].earned
    assert np.unique(earned[:400]) == pytest.approx([1.3])
    assert not earned[400:650].any()
    assert np.isnan(earned[-99:]).all()  # their deadlines are behind the last arrival
    choice = PolicyChoice(RequestPlan("edf"), 0.9, 1.0, 0.9, 20, 800, missed=0.1)
    learner.take(choice, 200.0, 1.0)
    come(learner, 400, 200.0, accuracy=0.7)
    assert learner.due(200.5 + auto.CHECKED_S)
    found = learner.window(service(), 200.5 + auto.CHECKED_S)
    assert found is not None
    known = found[1]
    assert (known.before, known.lead) == (named_policy("auto"), auto.LEAD)
    assert dict(known.missed) == {named_policy("auto"): 0.1}
    assert np.isnan(known.earned[: known.lead]).all()
    assert np.nanmean(known.earned) == pytest.approx(1.2)


def test_a_change_that_is_taken_back_is_not_tried_again_soon() -> None:
    """Checks follow at once at first, then they rest as choices do."""
    first, tried = named_policy("auto"), RequestPlan("edf")
    learner = Learner(first)
    come(learner, auto.LEAST, 0.0)
    assert learner.window(service(), 10.0) is not None
    learner.take(PolicyChoice(tried, 0.9, 1.0, 0.9, 20, 500), 10.0, 1000.0)
    assert (learner.plan, learner.before) == (tried, first)
    now_s = 10.0
    for _ in range(auto.SOON):
        come(learner, auto.WINDOW // 2, now_s)
        now_s += 2.0
        assert learner.due(now_s)
        assert learner.window(service(), now_s) is not None
        learner.take(PolicyChoice(tried, 0.9, 1.0, 0.9, 2, 500), now_s, 1.0)
    come(learner, auto.WINDOW // 2, now_s)
    assert not learner.due(now_s + 2.0)
    assert learner.due(now_s + auto.RESTS + 1.0)
    assert learner.window(service(), now_s + auto.RESTS + 1.0) is not None
    learner.take(PolicyChoice(first, 0.9, 1.0, 0.9, 2, 500), now_s + 6.0, 1.0)
    assert (learner.plan, learner.before) == (first, None)
    found = learner.window(service(), 2000.0)
    assert found is not None
    assert found[1].barred == (tried,)
    come(learner, auto.BARRED + 1, 3000.0)
    found = learner.window(service(), 4000.0)
    assert found is not None
    assert not found[1].barred


def test_only_auto_chooses_for_what_is_expected(tmp_path: Any) -> None:
    """A named policy stays what it is."""
    assert isinstance(_policy("auto", None, None, 0.5), AutoPolicy)
    with pytest.raises(InputError, match="only auto chooses"):
        _policy("rolling", None, None, 0.5)
    with pytest.raises(InputError, match="--expect"):
        _policy("auto", tmp_path / "plan.json", tmp_path / "p.yaml")
