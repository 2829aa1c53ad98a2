"""Explanations of single requests."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import UnknownNameError
from placewright.requests.conformance import random_problem, two_servers
from placewright.requests.plan import RequestPlan
from placewright.requests.problem import RequestProblem
from placewright.requests.stream import stream_of
from placewright.requests.views import explain


@pytest.mark.parametrize("name", ["40", "-1", "x", "", "²", "9" * 5000])
def test_an_unknown_request_is_an_error_that_says_which_there_are(name: str) -> None:
    """Whatever is written in place of its number."""
    with pytest.raises(UnknownNameError, match="0 to 39"):
        explain(random_problem(0), RequestPlan("edf"), name)


def test_servers_with_unlike_links_are_options_of_their_own() -> None:
    """With equal latencies, the one behind a round trip of half a second is too slow."""
    slow = two_servers(round_trip_s=np.array([0.5, 0.0]))
    service = slow.replace(latency_s=np.broadcast_to(slow.latency_s[:1], (2, 2, 5)))
    problem = RequestProblem(service, stream_of([0.0], 0.1), 1.0)
    options = explain(problem, RequestPlan("edf"), "0").options
    verdicts = {(option["server"], option["verdict"]) for option in options}
    assert verdicts == {
        ("fast", "too slow"),
        ("slow", "fits"),
    }
