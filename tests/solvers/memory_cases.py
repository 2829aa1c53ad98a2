"""Small PBQPs with memory over time, and the enumeration of all assignments."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from placewright.solvers.memory_pbqp import MemoryPbqp
from placewright.solvers.pbqp import Pbqp


def random_case(seed: int, n: int = 6, options: int = 3) -> MemoryPbqp:
    """Whole costs, ties between nodes, forbidden pairs, live intervals and a limit that binds."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, options + 1, n)
    nodes = [_costs(rng, (int(k),), 0.05) for k in sizes]
    edges = []
    for i, j in itertools.combinations(range(n), 2):
        if rng.random() < 0.5:
            edges.append((i, j, _costs(rng, (int(sizes[i]), int(sizes[j])), 0.1)))
        elif sizes[i] == sizes[j] and rng.random() < 0.3:
            edges.append((i, j, _tie(rng, int(sizes[i]))))
    usage = rng.integers(0, 10, int(sizes.sum()))
    live_from = rng.integers(0, 6, n)
    live_until = live_from + rng.integers(0, 5, n)
    limit = int(rng.integers(2, 9) * n / 2)
    return MemoryPbqp(Pbqp.of(nodes, edges), usage, live_from, live_until, limit, f"random {seed}")


def _costs(rng: np.random.Generator, shape: tuple[int, ...], forbidden: float) -> Any:
    costs = rng.integers(0, 30, shape).astype(float)
    costs[rng.random(shape) < forbidden] = np.inf
    return costs


def _tie(rng: np.random.Generator, size: int) -> Any:
    """Each option goes with exactly one of the other node's."""
    matrix = np.full((size, size), np.inf)
    matrix[np.arange(size), rng.permutation(size)] = rng.integers(0, 9, size)
    return matrix


def slow_value(p: MemoryPbqp, x: Any) -> float:
    """Term by term; ``inf`` where a moment needs more than the limit."""
    q, total = p.pbqp, 0.0
    for t in range(int(p.live_until.max(initial=0))):
        alive = [i for i in range(p.n) if p.live_from[i] <= t < p.live_until[i]]
        if sum(int(p.usage[q.start[i] + x[i]]) for i in alive) > p.limit:
            return float("inf")
    for i in range(p.n):
        total += float(q.cost[q.start[i] + x[i]])
    for (i, j), at in zip(q.ends.tolist(), q.matrix.tolist(), strict=True):
        width = q.start[j + 1] - q.start[j]
        total += float(q.pool[at + x[i] * width + x[j]])
    return total


def optimum(p: MemoryPbqp) -> float:
    """Every assignment tried."""
    sizes = np.diff(p.pbqp.start).tolist()
    return min(slow_value(p, x) for x in itertools.product(*(range(k) for k in sizes)))
