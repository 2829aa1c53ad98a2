"""The simulator equals a reference on SimPy to the last bit, and refuses impossible dispatches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placewright.errors import RunError
from placewright.planning.contract import Context
from placewright.requests.conformance import random_problem, two_servers
from placewright.requests.judge import RequestJudgement, judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import planners
from placewright.requests.policies import start
from placewright.requests.policies.edf import Edf
from placewright.requests.policy import Decision, Dispatch
from placewright.requests.problem import RequestProblem
from placewright.requests.simulation import Answers, simulate
from placewright.requests.stream import stream_of
from tests.requests.reference import simulate_slowly


@pytest.mark.parametrize("name", ["rolling", "thesis", "least-completion", "edf-fastest-batch"])
def test_the_simulator_equals_the_reference(name: str) -> None:
    """Memory, network, noise, ties: every column of the answers."""
    for seed in range(8):
        problem = random_problem(seed)
        plan = planners(problem)[name](problem, Context(seed))
        fast = simulate(problem, start(plan, problem.service))
        slow = simulate_slowly(problem, start(plan, problem.service))
        for column, *both in zip(fast._fields, fast, slow, strict=True):
            assert np.array_equal(*both), (seed, column)


def test_requests_that_are_never_answered_are_counted() -> None:
    """In the table, where there are some, and in the document."""
    problem = RequestProblem(two_servers(), stream_of([0.0, 1.0, 2.0], 0.5), 3.0)
    answers = Answers.none(3)
    answers.refused_s[0] = 0.0
    found = RequestJudgement(problem, RequestPlan("edf-fastest"), answers)
    assert found.metrics["lost"] == (2.0, "")
    counts = {name: found.summary_json()[name] for name in ("late", "refused", "lost")}
    assert counts == {"late": 0, "refused": 1, "lost": 2}
    answers.refused_s[:] = 0.0
    assert "lost" not in found.metrics
    assert found.summary_json()["lost"] == 0


def with_holes(problem: RequestProblem, seed: int) -> RequestProblem:
    """Some sizes do not run, that of one among them; larger batches may take less time."""
    rng, service = np.random.default_rng(seed), problem.service
    latency_s = service.latency_s[:, :, rng.permutation(service.max_batch + 1)].copy()
    latency_s[rng.random(latency_s.shape) < 0.4] = np.inf
    latency_s[0, :, 2] = 0.05
    latency_s = np.where(latency_s > 0, latency_s, 0.02)
    latency_s[:, :, 0] = 0.0
    return problem.replace(service=service.replace(latency_s=latency_s))


@pytest.mark.parametrize("holes", [False, True])
def test_every_log_is_a_schedule(holes: bool) -> None:
    """No server has two batches at once; none starts before its requests; sizes are true."""
    for seed in range(4):
        problem = random_problem(seed, 80)
        problem = with_holes(problem, seed) if holes else problem
        for name, planner in planners(problem).items():
            if planner.unsupported_reason(problem) is not None:
                continue
            a = judge(problem, planner(problem, Context(seed))).answers
            served = a.server >= 0
            assert (a.start_s[served] >= problem.stream.arrival_s[served]).all(), name
            assert not (served & np.isfinite(a.refused_s)).any(), name
            assert (np.bincount(a.number[served])[a.number[served]] == a.batch[served]).all(), name
            families = problem.service.family[a.variant[served]]
            assert (families == problem.stream.family[served]).all(), name
            for server in range(problem.service.servers):
                _, first = np.unique(a.number[a.server == server], return_index=True)
                start_s, end_s = (x[a.server == server][first] for x in (a.start_s, a.end_s))
                order = np.argsort(start_s)
                assert (start_s[order][1:] >= end_s[order][:-1]).all(), name


def test_a_link_and_a_load_hold_the_server() -> None:
    """One request of 1,000 bytes: round trip, 1 ms a byte, half a second of loading, 10 ms."""
    service = two_servers(
        memory_bytes=np.ones(2),
        server_memory_bytes=np.ones(2),
        load_s=np.full((2, 2), 0.5),
        round_trip_s=np.full(2, 0.02),
        seconds_per_byte=np.full(2, 1e-3),
    )
    stream = stream_of([0.0], 9.0, input_bytes=1000.0)
    a = simulate(RequestProblem(service, stream, 1.0), Edf().start(service))
    assert a.end_s[0] == pytest.approx(0.02 + 1.0 + 0.5 + 0.01)


class Wrong:
    """A policy that answers with one and the same decision."""

    eager = False

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def decide(self, now_s: float, queue: Any, servers: Any) -> Decision:
        """The decision."""
        return self.decision


@pytest.mark.parametrize(
    ("decision", "says"),
    [
        (Decision((Dispatch(0, 0, np.array([0])), Dispatch(0, 0, np.array([1])))), "cannot"),
        (Decision((Dispatch(0, 0, np.arange(10)),)), "cannot start"),
        (Decision(wake_s=-1.0), "past"),
    ],
)
def test_an_impossible_decision_is_an_error(decision: Decision, says: str) -> None:
    """A busy server, a batch that is too large, a time that is over."""
    problem = RequestProblem(two_servers(), stream_of([0.0, 0.0], 1.0), 1.0)
    with pytest.raises(RunError, match=says):
        simulate(problem, Wrong(decision))  # type: ignore[arg-type]


def test_noise_belongs_to_the_request() -> None:
    """Another seed gives other times; the same seed the same."""
    service = replace(two_servers(), noise=0.05)
    problem = RequestProblem(service, stream_of(np.linspace(0.0, 0.5, 20), 1.0), 1.0)
    ends = [
        simulate(problem.replace(noise_seed=seed), Edf().start(problem.service)).end_s
        for seed in (0, 0, 1)
    ]
    assert np.array_equal(ends[0], ends[1])
    assert not np.array_equal(ends[0], ends[2])


def test_it_stops_after_so_many_failures() -> None:
    """What was answered until then is as without; a limit that is not reached changes nothing."""
    arrival_s = np.arange(400) * 0.002
    problem = RequestProblem(two_servers(), stream_of(arrival_s, 0.1), 1.0)
    whole = judge(problem, Edf("fastest")(problem, Context()))
    failures = int((~whole.succeeded).sum())
    assert failures > 50
    some = judge(problem, whole.plan, 20)
    answered = some.answers.server >= 0
    assert 0 < answered.sum() < (whole.answers.server >= 0).sum()
    assert (some.answers.end_s[answered] == whole.answers.end_s[answered]).all()
    last_s = some.answers.start_s[answered].max()
    failed = (some.answers.end_s > problem.stream.due_s) & answered
    assert failed.sum() + (some.answers.refused_s <= last_s).sum() > 20
    assert judge(problem, whole.plan, failures).value == whole.value
