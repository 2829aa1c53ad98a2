"""Random small problems with accelerators that are called through host memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from placewright.operators.conformance import random_problem, tiny
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from tests.operators.simulation.reference import simulate

INF = float("inf")


def star_problem(
    seed: int,
    *,
    operators: int = 6,
    accelerators: int = 2,
    calls: int = 1,
    alike: bool = True,
    groups: bool = True,
) -> OperatorProblem:
    """A random graph; the last device is a CPU; memory is sometimes short, operators refused."""
    rng = np.random.default_rng(seed)
    graph = random_problem(seed, most_operators=operators, most_devices=1)
    n, m = graph.n, accelerators + 1
    fast = rng.choice([0.0, 0.5, 1.0, 2.0], (n, 1 if alike else accelerators))
    fast = np.where(rng.random(fast.shape) < 0.1, INF, fast)
    compute = np.hstack(
        [np.broadcast_to(fast, (n, accelerators)), rng.choice([0, 2, 4, 6], (n, 1))]
    )
    resident = rng.integers(0, 4, n)
    room = float(np.ceil(resident.sum() * rng.choice([0.4, 0.7, 2.0])))
    host = [1.0] * accelerators if alike else rng.choice([0.5, 1.0], accelerators).tolist()
    blank: dict[str, Any] = {"latency_s": np.zeros((m, m)), "seconds_per_byte": np.zeros((m, m))}
    return tiny(compute.tolist()).replace(
        tensor_names=graph.tensor_names,
        tensor_producer=graph.tensor_producer,
        tensor_bytes=rng.choice([0.0, 0.25, 0.5, 1.0], graph.t),
        consumer_offsets=graph.consumer_offsets,
        consumers=graph.consumers,
        resident_bytes=resident,
        memory_bytes=[room] * accelerators + [INF],
        colocation=graph.colocation if groups else np.arange(n),
        communication="star",
        host_seconds_per_byte=[*host, 0.0],
        calls=calls,
        name=f"star-{seed}",
        **blank,
    )


def best_latency(p: OperatorProblem) -> float:
    """The least latency over all placements and calls, by trying them all."""
    q = p.calls
    choices = [(d, c) for d in range(p.m - 1) for c in range(q)] + [(p.m - 1, 0)]
    best = INF
    for picked in product(choices, repeat=p.n):
        place, call = [d for d, _ in picked], [c for _, c in picked]
        if _allowed(p, place):
            best = min(best, simulate(p, OperatorPlan(place, call=call)).value)
    return best


def _allowed(p: OperatorProblem, place: list[int]) -> bool:
    held = np.bincount(place, p.resident_bytes, p.m)
    together = all(
        place[i] == place[j]
        for i in range(p.n)
        for j in range(i)
        if p.colocation[i] == p.colocation[j]
    )
    runs = all(np.isfinite(p.compute_s[i, d]) for i, d in enumerate(place))
    return together and runs and bool((held <= p.memory_bytes).all())
