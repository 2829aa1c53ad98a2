"""Small services and problems, random and fixed."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.requests.problem import RequestProblem
from placewright.requests.service import Service, service_of
from placewright.requests.stream import stream_of


def two_servers(**given: Any) -> Service:
    """A fast and a slow server; a small and a large variant; batches of up to 4."""
    alone = np.array([[0.010, 0.040], [0.030, 0.120]])
    latency_s = alone[:, :, None] * (0.5 + 0.5 * np.arange(5))
    latency_s[:, :, 0] = 0.0
    return service_of(("fast", "slow"), ("small", "large"), [0.7, 0.9], latency_s, **given)


def random_problem(seed: int, **changes: Any) -> RequestProblem:
    """Up to 3 servers, 2 families, 40 requests, every feature of a problem at random."""
    rng = np.random.default_rng(seed)
    n, m, sizes, count = int(rng.integers(1, 4)), int(rng.integers(2, 5)), 4, 40
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
        seconds_per_byte=np.full(n, 1e-6),
        noise=0.05 * (rng.random() < 0.5),
    )
    stream = stream_of(
        np.sort(rng.uniform(0, 1.0, count)).round(int(rng.integers(2, 7))),
        rng.uniform(0.03, 0.4, count),
        rng.integers(0, 2, count),
        min_accuracy=np.where(rng.random(count) < 0.3, 0.7, 0.0),
        time_sensitivity=rng.random(count),
        accuracy_sensitivity=rng.random(count),
        input_bytes=rng.uniform(0, 2000, count),
    )
    return RequestProblem(service, stream, 1.0, seed, name=f"random {seed}").replace(**changes)
