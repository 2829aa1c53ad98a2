"""Tiny problems of wing 4, named and random ones, for the conformance kit and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.requests.files import check_plan
from placewright.requests.plan import RequestPlan
from placewright.requests.problem import RequestProblem
from placewright.requests.service import Service, service_of
from placewright.requests.stream import stream_of

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = [
    "check_plan",
    "random_problem",
    "random_problems",
    "same_plan",
    "tiny_instances",
    "two_servers",
]


def two_servers(**given: Any) -> Service:
    """A fast and a slow server; a small and a large variant; batches of up to 4."""
    alone = np.array([[0.010, 0.040], [0.030, 0.120]])
    latency_s = alone[:, :, None] * (0.5 + 0.5 * np.arange(5))
    latency_s[:, :, 0] = 0.0
    return service_of(("fast", "slow"), ("small", "large"), [0.7, 0.9], latency_s, **given)


def random_problem(seed: int, requests: int = 40, **changes: Any) -> RequestProblem:
    """Up to 3 servers, 2 families, every feature of a problem at random."""
    rng = np.random.default_rng(seed)
    n, m, sizes = int(rng.integers(1, 4)), int(rng.integers(2, 5)), 4
    latency_s = rng.uniform(0.005, 0.08, (n, m, 1)) * (0.6 + 0.4 * np.arange(sizes + 1))
    latency_s[rng.random((n, m)) < 0.2] = np.inf
    latency_s[0] = np.where(np.isfinite(latency_s[0]), latency_s[0], 0.05)
    latency_s[:, :, 0] = 0.0
    service = service_of(
        tuple(f"s{k}" for k in range(n)),
        tuple(f"v{k}" for k in range(m)),
        rng.uniform(0.5, 1.0, m).round(3),
        latency_s,
        family_names=("a", "b"),
        family=np.arange(m) % 2,
        memory_bytes=np.full(m, 1.0),
        server_memory_bytes=np.where(rng.random(n) < 0.5, 1.0, np.inf),
        load_s=np.full((n, m), 0.01),
        round_trip_s=np.full(n, 0.001) * (rng.random() < 0.5),
        seconds_per_byte=np.full(n, 2.0**-20),
        noise=0.05 * (rng.random() < 0.5),
    )
    stream = stream_of(
        np.sort(rng.uniform(0, 1.0, requests)).round(int(rng.integers(2, 7))),
        rng.uniform(0.03, 0.4, requests),
        rng.integers(0, 2, requests),
        min_accuracy=np.where(rng.random(requests) < 0.3, 0.7, 0.0),
        time_sensitivity=rng.random(requests),
        accuracy_sensitivity=rng.random(requests),
        input_bytes=rng.uniform(0, 2000, requests),
    )
    return RequestProblem(service, stream, 1.0, seed, name=f"random {seed}").replace(**changes)


def tiny_instances() -> Mapping[str, RequestProblem]:
    """The cases that policies get wrong, each as small as it can be."""
    service = two_servers()

    def of(arrival_s: Any, deadline_s: Any, **given: Any) -> RequestProblem:
        return RequestProblem(service, stream_of(arrival_s, deadline_s, **given), 1.0)

    return {
        "one-request": of([0.0], 0.5),
        "hopeless": of([0.0, 0.0], [0.005, 0.5]),
        "burst": of(np.zeros(12), 0.1),
        "floor-out-of-reach": of([0.0, 0.1], 0.5, min_accuracy=[0.95, 0.8]),
        "one-is-enough": of([0.0, 0.2, 0.4], 0.06),
        "same-deadlines": of([0.0, 0.01, 0.02], [0.12, 0.11, 0.10]),
    }


def random_problems() -> SearchStrategy[RequestProblem]:
    """Small problems with memory, network, noise, floors and two families."""
    from hypothesis import strategies

    return strategies.builds(random_problem, strategies.integers(0, 2**32 - 1))


def same_plan(plan: RequestPlan, other: RequestPlan) -> bool:
    """Whether the same policy with the same parameters and seed decides."""
    return plan == other
