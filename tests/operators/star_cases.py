"""Small pipelines around host memory, and the enumeration of all their plans."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from placewright.operators.conformance import random_problem
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem


def star(seed: int, *, operators: int = 7, devices: int = 3, **changes: Any) -> OperatorProblem:
    """A random problem with accelerators and CPUs, some of it backward, some memory short."""
    rng = np.random.default_rng(seed)
    size = {"most_operators": operators, "most_devices": devices}
    p = random_problem(seed, objective="throughput", communication="star", **size)
    late = np.zeros(p.n, dtype=bool)
    late[p.topology.order[int(rng.integers(0, p.n + 1)) :]] = rng.random() < 0.5
    rates = rng.choice([0.0, 1.0, 1.0, 0.3], p.m)
    alike = rng.random() < 0.5
    if alike:  # devices of one kind are where symmetry has to be broken rightly
        first = np.where(np.isfinite(p.compute_s[:, :1]), p.compute_s[:, :1], 2.0)
        p = p.replace(compute_s=np.repeat(first, p.m, axis=1), pinned=np.full(p.n, -1))
        rates = np.full(p.m, 1.0)
    return p.replace(**({"host_seconds_per_byte": rates, "is_backward": late} | changes))


def best_value(problem: OperatorProblem) -> float:
    """Value of the best of all placements by the judge, ``inf`` where none fits."""
    allowed = problem.allowed()
    best = np.inf
    for place in product(*(np.flatnonzero(row).tolist() for row in allowed)):
        chosen = np.array(place)
        if any(chosen[i] != chosen[j] for i, j in _mates(problem)):
            continue
        judgement = judge(problem, OperatorPlan(chosen))
        if judgement.feasible:
            best = min(best, judgement.value)
    return float(best)


def _mates(p: OperatorProblem) -> list[tuple[int, int]]:
    groups = p.colocation.tolist()
    return [(i, groups.index(groups[i])) for i in range(p.n)]
