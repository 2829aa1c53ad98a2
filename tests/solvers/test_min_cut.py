"""Minimum cuts."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from placewright.solvers.min_cut import SINK, SOURCE, Network, min_cut


def cut_cost(network: Network, side: list[bool]) -> float:
    """What the arcs from the source's side to the other cost."""
    arcs = zip(network.tail, network.head, network.capacity, strict=True)
    return sum(c for a, b, c in arcs if side[a] and not side[b])


@pytest.mark.parametrize("seed", range(30))
def test_no_cut_is_cheaper(seed: int) -> None:
    """All cuts of small random networks, some arcs forbidden."""
    rng = np.random.default_rng(seed)
    network = Network()
    nodes = [SOURCE, SINK, *(network.node() for _ in range(6))]
    for _ in range(int(rng.integers(0, 16))):
        a, b = rng.choice(nodes, 2, replace=False).tolist()
        network.arc(a, b, math.inf if rng.random() < 0.15 else float(rng.random()))
    side, error = min_cut(network)
    cuts = [[True, False, *rest] for rest in product([True, False], repeat=6)]
    best = min(cut_cost(network, c) for c in cuts)
    if math.isfinite(best):
        assert cut_cost(network, side.tolist()) <= best + error + 1e-12
        assert error < 1e-9
    else:
        assert math.isinf(error)
