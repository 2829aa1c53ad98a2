"""Opportunity costs: requests that start, wait, or are refused."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.planning.contract import Context
from placewright.requests.conformance import two_servers
from placewright.requests.judge import judge
from placewright.requests.policies.opportunity import Opportunity
from placewright.requests.policy import Decision
from placewright.requests.problem import RequestProblem
from placewright.requests.queue import Queue, Servers
from placewright.requests.stream import stream_of


def decided(policy: Opportunity, deadlines_s: list[float], floor: float = 0.0) -> Decision:
    """One decision at time 0 about requests of the two servers."""
    service = two_servers()
    queue = Queue()
    for k, deadline_s in enumerate(deadlines_s):
        queue.add(k, 0, 0.0, deadline_s, floor)
    return policy.start(service).decide(0.0, queue, Servers.of(service))


def test_dear_machine_time_trades_accuracy_for_success() -> None:
    """The one knob."""
    rng = np.random.default_rng(0)
    stream = stream_of(np.sort(rng.uniform(0, 20, 1200)), 0.15)
    problem = RequestProblem(two_servers(), stream, 20.0)
    cheap, dear = (
        judge(problem, Opportunity(scale=scale)(problem, Context())) for scale in (0.1, 3.0)
    )
    assert dear.success_rate >= cheap.success_rate
    assert dear.accuracy_of_successes < cheap.accuracy_of_successes


def test_a_request_without_slack_starts_and_one_with_slack_waits_for_what_it_is_worth() -> None:
    """The fast server's small variant takes 10 ms; waiting is worth 0.8 with much time left."""
    waits = Opportunity(worth=(0.8, 0.8), patience_s=(0.1, 0.1), bonus=0.0, price=(0.2,))
    assert [batch.variant for batch in decided(waits, [0.011]).dispatches] == [0]
    later = decided(waits, [5.0])
    assert not later.dispatches
    assert 0 < later.wake_s < 5.0


def test_what_no_server_answers_in_time_is_refused_and_not_batched() -> None:
    """9 ms are too few for 10; the large variant takes 40 ms."""
    assert decided(Opportunity(), [0.009, 0.5]).refused.tolist() == [0]
    assert decided(Opportunity(), [0.039], floor=0.8).refused.tolist() == [0]
    assert decided(Opportunity(), [5.0], floor=0.95).refused.tolist() == [0]


def test_numbers_of_other_variants_are_refused() -> None:
    """Two variants are served."""
    with pytest.raises(InputError, match="for 2 variants"):
        Opportunity(worth=(0.8,)).start(two_servers())
    with pytest.raises(InputError, match="price needs a number"):
        Opportunity(price=()).start(two_servers())
    with pytest.raises(InputError, match="price has numbers"):
        Opportunity(price=(-1.0,)).start(two_servers())
