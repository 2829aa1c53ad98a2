"""The PBQP engine against toulbar2, and toulbar2 against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from tests.solvers.memory_cases import optimum, random_case, slow_value
from tests.solvers.toulbar2 import solve_by_toulbar2

from placewright.errors import InfeasibleError
from placewright.solvers.memory_pbqp import MemoryPbqp
from placewright.solvers.memory_search import solve_pbqp_memory
from placewright.solvers.pbqp import Pbqp, solve_pbqp


@pytest.mark.filterwarnings("ignore")
def test_memory_problems_agree() -> None:
    """Three ways, one optimum."""
    pytest.importorskip("pytoulbar2", reason="pytoulbar2 is not installed")
    for seed in range(40):
        problem = random_case(seed)
        best, theirs = optimum(problem), solve_by_toulbar2(problem)
        if theirs is None:
            assert best == np.inf, seed
            with pytest.raises(InfeasibleError):
                solve_pbqp_memory(problem, rounds=0)
        else:
            assert slow_value(problem, theirs) == best, seed
            assert solve_pbqp_memory(problem, rounds=0).value == best, seed


@pytest.mark.filterwarnings("ignore")
def test_plain_problems_beyond_brute_force_agree() -> None:
    """Two dozen nodes on rings of rings, which our reductions leave to branching."""
    pytest.importorskip("pytoulbar2", reason="pytoulbar2 is not installed")
    for seed in range(4):
        rng = np.random.default_rng(seed)
        nodes = [rng.integers(0, 60, 4) for _ in range(24)]
        edges = [(i, (i + d) % 24, rng.integers(0, 60, (4, 4))) for i in range(24) for d in (1, 5)]
        plain = Pbqp.of(nodes, edges)
        theirs = solve_by_toulbar2(MemoryPbqp(plain, np.zeros(96), np.zeros(24), np.zeros(24), 0))
        ours = solve_pbqp(plain)
        assert theirs is not None
        assert ours.lower_bound <= plain.value(theirs) <= ours.value
        if ours.proved:
            assert plain.value(theirs) == ours.value
