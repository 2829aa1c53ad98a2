"""The PBQP engine against toulbar2."""

from __future__ import annotations

import numpy as np
import pytest
from tests.solvers.toulbar2 import solve_by_toulbar2

from placewright.solvers.pbqp import Pbqp, solve_pbqp


@pytest.mark.filterwarnings("ignore")
def test_plain_problems_beyond_brute_force_agree() -> None:
    """Two dozen nodes on rings of rings, which our reductions leave to branching."""
    pytest.importorskip("pytoulbar2", reason="pytoulbar2 is not installed")
    for seed in range(4):
        rng = np.random.default_rng(seed)
        nodes = [rng.integers(0, 60, 4) for _ in range(24)]
        edges = [(i, (i + d) % 24, rng.integers(0, 60, (4, 4))) for i in range(24) for d in (1, 5)]
        plain = Pbqp.of(nodes, edges)
        theirs = solve_by_toulbar2(plain)
        ours = solve_pbqp(plain)
        assert theirs is not None
        assert ours.lower_bound <= plain.value(theirs) <= ours.value
        if ours.proved:
            assert plain.value(theirs) == ours.value
