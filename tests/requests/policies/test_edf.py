"""Central EDF accounts for all of a request's time."""

from __future__ import annotations

import numpy as np

from placewright.planning.contract import Context
from placewright.requests.conformance import two_servers
from placewright.requests.judge import judge
from placewright.requests.policies.edf import Edf
from placewright.requests.problem import RequestProblem
from placewright.requests.stream import stream_of


def test_the_way_to_a_server_counts() -> None:
    """The fast server is far away: nearer ones are faster, and who has no time left is refused."""
    service = two_servers().replace(round_trip_s=np.array([0.5, 0.0]))
    stream = stream_of(np.array([0.0, 1.0]), np.array([0.1, 0.02]))
    problem = RequestProblem(service, stream, 2.0)
    answers = judge(problem, Edf()(problem, Context())).answers
    assert answers.server.tolist() == [1, -1]
