"""Fitting: the compiled simulation equals the judge, and the search finds minima."""

from __future__ import annotations

import numpy as np

from placewright.planning.contract import Context
from placewright.requests.conformance import random_problem, two_servers
from placewright.requests.judge import judge
from placewright.requests.policies.opportunity import Opportunity
from placewright.requests.problem import RequestProblem
from placewright.requests.selection import Player, fitted, minimised
from placewright.requests.stream import stream_of


def test_the_compiled_simulation_equals_the_judge() -> None:
    """Random problems with noise, floors, two families and links; memory and bytes are no limit."""
    for seed in range(20):
        problem = random_problem(seed, requests=60)
        s = problem.service
        service = s.replace(
            server_memory_bytes=np.full(s.servers, np.inf), seconds_per_byte=np.zeros(s.servers)
        )
        problem = problem.replace(service=service)
        policy = Opportunity(price=(0.3, 0.1, 0.2)[: s.servers], crowding=0.5)
        judged = judge(problem, policy(problem, Context()))
        success, value = Player([problem])(policy)
        np.testing.assert_allclose(success, judged.success_rate, rtol=1e-12, err_msg=str(seed))
        np.testing.assert_allclose(value, judged.value, rtol=1e-12, err_msg=str(seed))


def test_the_search_finds_the_minimum_of_an_ellipsoid() -> None:
    """A hundred times as narrow in one direction, and turned."""
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))
    scale, at = np.array([1, 2, 3, 10, 30, 100.0]), np.linspace(-1, 1, 6)
    found = minimised(lambda z, _: float(((turn @ (z - at) * scale) ** 2).sum()), 6, 3000)
    np.testing.assert_allclose(found, at, atol=1e-4)


def streams(seed: int) -> RequestProblem:
    """More requests than the two servers can answer with the accurate variant."""
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.uniform(0, 10, 600))
    return RequestProblem(
        two_servers(), stream_of(arrival_s, rng.uniform(0.02, 0.4, 600)), 10.0, seed
    )


def test_fitted_parameters_are_better_on_other_streams_and_the_same_for_a_seed() -> None:
    """Than the usual ones."""
    pairs = [[streams(k)] for k in range(3)]
    policy = fitted(pairs, np.zeros((3, 1)), 4.0, 150)
    other = streams(7)
    value = judge(other, policy(other, Context())).value
    assert value > judge(other, Opportunity()(other, Context())).value + 0.005
    assert fitted(pairs, np.zeros((3, 1)), 4.0, 150) == policy
