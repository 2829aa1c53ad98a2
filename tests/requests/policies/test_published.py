"""JF and MS reach their published values; policies of single requests need batches of one."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.planning.contract import Context
from placewright.requests.capacity import played
from placewright.requests.conformance import two_servers
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import planners
from placewright.requests.policies import start
from placewright.requests.problem import RequestProblem
from placewright.requests.queue import Queue, Servers
from placewright.requests.readers import serving_problem
from placewright.requests.selection import Tuned
from placewright.requests.stream import stream_of
from tests.published import published


@pytest.mark.parametrize(
    ("scenario", "name", "success", "effective"),
    [
        ("w60_slo150_r400", "jf", 1.0, 0.80608),
        ("w60_slo150_r400", "ms", 0.999669, 0.842001),
        ("w60_slo150_r3600", "jf", 0.607888, 0.352405),
    ],
)
def test_jf_and_ms_reach_their_published_values(
    scenario: str, name: str, success: float, effective: float
) -> None:
    """Seed 0, every request counted."""
    judged = played(
        serving_problem(published("serving/ramsis_image.json"), scenario), name
    ).judgement
    assert judged.success_rate == pytest.approx(success, abs=1e-6)
    assert judged.value == pytest.approx(effective, abs=1e-6)


def test_one_by_one_needs_batches_of_one() -> None:
    """A model that was exported for two rows: said in tables, and of plans from a file."""
    service = two_servers()
    latency_s = service.latency_s.copy()
    latency_s[:, :, 1] = np.inf
    problem = RequestProblem(service.replace(latency_s=latency_s), stream_of([0.0, 0.0], 1.0), 1.0)
    for name in ("round-robin", "random", "shortest-queue", "least-completion", "thesis"):
        reason = planners(problem)[name].unsupported_reason(problem)
        assert reason == "no server runs family 'all' in batches of one"
    for policy in ("early", "thesis"):
        with pytest.raises(InputError, match="in batches of one"):
            judge(problem, RequestPlan(policy))
    for policy in ("rolling", "opportunity", "slack-fit"):
        assert judge(problem, RequestPlan(policy)).success_rate == 1.0
    many = problem.replace(stream=stream_of(np.arange(400) / 400, 0.5))
    plan = Tuned(evaluations=12)(many, Context())  # which fits parameters to so many
    assert judge(many, plan).value >= judge(many, RequestPlan("rolling")).value


def test_two_steps_take_variants_that_run_somewhere() -> None:
    """The accurate one runs in pairs only: it promises nothing, and the small one answers."""
    service = two_servers()
    latency_s = service.latency_s.copy()
    latency_s[:, 1, 1] = np.inf
    service = service.replace(latency_s=latency_s)
    stream = stream_of([0.0, 0.1], 1.0, min_accuracy=[0.0, 0.8])
    answers = judge(RequestProblem(service, stream, 1.0), RequestPlan("thesis")).answers
    assert answers.variant.tolist() == [0, 0]


@pytest.mark.parametrize("variant", [-1, 2])
def test_a_table_names_variants_that_are_there(variant: int) -> None:
    """Neither beyond the last one nor counted from it."""
    problem = RequestProblem(two_servers(), stream_of([0.0], 1.0), 1.0)
    with pytest.raises(InputError, match=f"variant {variant} of 2"):
        problem.replace(rates_per_s=np.ones(1), rate_variants=np.array([variant]))


def test_switching_answers_by_variants_that_requests_ask_for() -> None:
    """On a server, which takes any: not those of other families, too inaccurate or alone."""
    service = two_servers()
    with pytest.raises(InputError, match=r"one family only.*cats, dogs"):
        start(RequestPlan("jf"), service.replace(family_names=("cats", "dogs"), family=[0, 1]))
    with pytest.raises(InputError, match="no table of variants by rate"):
        start(RequestPlan("ms"), service)
    latency_s = service.latency_s.copy()
    latency_s[:, :, 2:] = np.inf  # computes each row by itself
    small = (("rates", (1.0,)), ("variants", service.variant_names[:1]))
    policy = start(RequestPlan("ms", small), service.replace(latency_s=latency_s))
    queue, servers = Queue(), Servers.of(service)
    for k, least in enumerate((0.0, 0.99, 0.0, 0.0)):
        queue.add(k, 0, 0.0, 1.0, least)
    decision = policy.decide(0.0, queue, servers)
    assert [each.slots.tolist() for each in decision.dispatches] == [[0], [2]]
    assert decision.refused.tolist() == [1]
