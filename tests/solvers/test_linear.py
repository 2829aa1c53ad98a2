"""SCIP and HiGHS agree with each other and with enumeration."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import numpy as np
import pytest

from placewright.solvers.highs import run_highs
from placewright.solvers.linear import LinearProgram
from placewright.solvers.scip import run_scip

pytest.importorskip("ortools")
pytest.importorskip("highspy")
BACK_ENDS = [run_scip, run_highs]


def shared(work: np.ndarray, most: float) -> tuple[LinearProgram, list[list[int]], int]:
    """Items shared out among machines so that the largest sum of work is least.

    Machine 0 takes at most `most` items.
    """
    program = LinearProgram()
    largest = program.column(0.0, 1e3, cost=1.0)
    x = [[program.binary() for _ in row] for row in work]
    for row in x:
        program.row(*((1.0, column) for column in row), low=1.0, high=1.0)
    for d in range(work.shape[1]):
        terms = [(float(work[i, d]), row[d]) for i, row in enumerate(x)]
        program.row(*terms, (-0.5, largest), (-0.5, largest), (1.0, None), high=0.0)
    program.row(*((1.0, row[0]) for row in x), high=most)
    return program, x, largest


def least(work: np.ndarray, most: float) -> float:
    """By trying them all; ``inf`` where nothing is allowed."""
    n, m = work.shape
    values = [
        max(sum(work[i, d] for i in range(n) if place[i] == d) for d in range(m))
        for place in product(range(m), repeat=n)
        if place.count(0) <= most
    ]
    return min(values, default=np.inf)


@pytest.mark.parametrize("solve", BACK_ENDS)
def test_the_least_is_found_and_proved(solve: Any) -> None:
    """Values, bound and choice; also from a start."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        work = rng.integers(1, 9, (int(rng.integers(1, 6)), int(rng.integers(1, 4)))).astype(float)
        most = float(rng.integers(0, 4)) if work.shape[1] > 1 else 9.0
        program, x, largest = shared(work, most)
        if seed % 2:
            program.start = {row[-1]: 1.0 for row in x}
        answer = solve(program, seed=seed, deadline_s=np.inf, tolerance=1e-6)
        best = least(work, most)
        assert answer.proved
        assert answer.values is not None
        assert answer.values(largest) == pytest.approx(best, abs=1e-5)
        assert answer.bound == pytest.approx(best, abs=1e-5)
        chosen = [[answer.values(column) for column in row] for row in x]
        assert np.allclose(np.sum(chosen, axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("solve", BACK_ENDS)
def test_what_cannot_be_is_said(solve: Any) -> None:
    """One machine that takes nothing."""
    program, _, _ = shared(np.ones((2, 1)), 0.0)
    answer = solve(program, seed=0, deadline_s=np.inf, tolerance=1e-6)
    assert answer.infeasible
    assert answer.values is None


@pytest.mark.parametrize("solve", BACK_ENDS)
def test_nothing_is_solved_after_the_deadline(solve: Any) -> None:
    """No values, and nothing proved."""
    program, _, _ = shared(np.ones((2, 2)), 9.0)
    answer = solve(program, seed=0, deadline_s=time.perf_counter(), tolerance=1e-6)
    assert (answer.values, answer.bound) == (None, 0.0)
