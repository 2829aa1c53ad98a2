"""Random small problems with accelerators that are called through host memory."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star import star_scores
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
    picked = np.array(list(product(choices, repeat=p.n))).reshape(-1, p.n, 2)
    place, call = picked[..., 0], picked[..., 1]
    kept = _allowed(p, place) & _without_gaps(p, place, call)
    place, call = place[kept], call[kept]
    values, over = star_scores(p, place, call)
    fits = over == 0
    if not (fits & np.isfinite(values)).any():
        return INF
    best = int(np.where(fits, values, INF).argmin())
    # Not only what a kernel says.
    assert simulate(p, OperatorPlan(place[best], call=call[best])).value == values[best]
    return float(values[best])


def _allowed(p: OperatorProblem, place: IntArray) -> IntArray:
    groups = p.colocation.tolist()
    leader = np.array([groups.index(group) for group in groups])
    runs = np.isfinite(p.compute_s[np.arange(p.n), place]).all(axis=1)
    return (place == place[:, leader]).all(axis=1) & runs


def _without_gaps(p: OperatorProblem, place: IntArray, call: IntArray) -> IntArray:
    """Where a device is called for the k-th time only if it is for the one before."""
    good = np.ones(len(place), dtype=bool)
    for d in range(p.m - 1):
        used = [((place == d) & (call == c)).any(axis=1) for c in range(p.calls)]
        for before, after in pairwise(used):
            good &= before | ~after
    return good
