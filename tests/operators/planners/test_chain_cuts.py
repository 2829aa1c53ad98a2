"""Cuts of a chain against every way of cutting it."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from placewright.numerics.arrays import FloatArray
from placewright.operators.planners.chain_dp import best_cuts, lowest_cuts


def by_hand(
    seconds: FloatArray,
    early: FloatArray,
    resident: FloatArray,
    budget: FloatArray,
    load: FloatArray,
    latency: FloatArray,
    per_byte: FloatArray,
) -> dict[tuple[int, int], float]:
    """Least time of every subset of devices and last device, by trying everything."""
    m, u = seconds.shape
    found: dict[tuple[int, int], float] = {}
    for count in range(1, min(m, u) + 1):
        for devices in permutations(range(m), count):
            for inner in combinations(range(1, u), count - 1):
                ends = [0, *inner, u]
                now = 0.0
                for k, d in enumerate(devices):
                    b, c = ends[k], ends[k + 1]
                    if resident[b:c].sum() > budget[d]:
                        now = np.inf
                        break
                    if k:
                        e = devices[k - 1]
                        if load[1, b]:
                            now += load[1, b] * latency[e, d] + load[0, b] * per_byte[e, d]
                        if load[3, b]:
                            now += load[3, b] * latency[d, e] + load[2, b] * per_byte[d, e]
                    first = early[d, b:c].sum()
                    now = max(now, first) + seconds[d, b:c].sum() - first
                key = (sum(1 << d for d in devices), devices[-1])
                found[key] = min(found.get(key, np.inf), now)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_cuts_are_the_best(seed: int) -> None:
    """All subsets, orders and cuts; refused units, missing links, memories that bind."""
    rng = np.random.default_rng(seed)
    m, u = int(rng.integers(1, 4)), int(rng.integers(1, 7))
    seconds = rng.integers(1, 9, (m, u)).astype(float)
    seconds[rng.random((m, u)) < 0.1] = np.inf
    early = np.where(np.isfinite(seconds), seconds * rng.random((m, u)) * 0.5, 0.0)
    resident = rng.integers(0, 5, u).astype(float)
    budget = rng.choice([4.0, 8.0, np.inf], m)
    load = np.zeros((4, u + 1))
    load[:, 1:u] = rng.integers(0, 4, (4, max(0, u - 1)))
    latency, per_byte = rng.random((m, m)), rng.random((m, m))
    gone = rng.random((m, m)) < 0.15
    latency[gone] = np.inf
    load[0, load[1] == 0] = load[2, load[3] == 0] = 0.0
    finite = np.where(np.isfinite(seconds), seconds, 0.0)
    work = np.cumsum(np.pad(finite, ((0, 0), (1, 0))), axis=1)
    waits = np.cumsum(np.pad(early, ((0, 0), (1, 0))), axis=1)
    low = lowest_cuts(seconds, resident, budget)
    best, cut, before = best_cuts(work, waits, low, load, latency, per_byte)
    expected = by_hand(seconds, early, resident, budget, load, latency, per_byte)
    for s in range(1, 1 << m):
        for d in range(m):
            value = expected.get((s, d), np.inf)
            assert best[s, d, u] == pytest.approx(value), (s, d)
            if np.isfinite(value):
                assert 0 <= cut[s, d, u] < u
                assert (before[s, d, u] < 0) == (s == 1 << d)
