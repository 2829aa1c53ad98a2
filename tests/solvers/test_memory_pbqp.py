"""Value and peak of an assignment against slow counting."""

from __future__ import annotations

import numpy as np
import pytest
from tests.solvers.memory_cases import random_case, slow_value

from placewright.errors import InputError
from placewright.solvers.memory_pbqp import MemoryPbqp
from placewright.solvers.pbqp import Pbqp


def test_value_and_peak_agree_with_the_slow_count() -> None:
    """Random assignments of random problems."""
    for seed in range(200):
        problem, rng = random_case(seed), np.random.default_rng(seed)
        x = [int(rng.integers(k)) for k in np.diff(problem.pbqp.start)]
        peak, moment = problem.peak(x)
        fits = problem.value(x) if peak <= problem.limit else np.inf
        assert fits == slow_value(problem, x), seed
        alive = (problem.live_from <= moment) & (moment < problem.live_until)
        used = problem.usage[problem.pbqp.start[:-1] + np.array(x)]
        assert used[alive].sum() == peak, seed


def test_large_costs_add_up_exactly() -> None:
    """Beyond 2^50 every unit still counts."""
    problem = MemoryPbqp(Pbqp.of([[2.0**52], [1.0], [1.0]]), [0] * 3, [0] * 3, [0] * 3, 1)
    assert problem.value([0, 0, 0]) == 2**52 + 2


def test_bad_input_is_named() -> None:
    """Lengths, signs, and sums that int64 cannot hold."""
    plain = Pbqp.of([[1.0, 2.0]])
    with pytest.raises(InputError, match=r"usage has the wrong length \(1, expected 2\)"):
        MemoryPbqp(plain, [1], [0], [1], 5)
    with pytest.raises(InputError, match="must not be negative"):
        MemoryPbqp(plain, [1, -1], [0], [1], 5)
    with pytest.raises(InputError, match=r"2\^62"):
        MemoryPbqp(plain, [2**61, 2**61], [0], [1], 5)


def test_hash_tells_problems_apart() -> None:
    """The limit counts, the name does not."""
    plain = Pbqp.of([[1.0, 2.0]])
    one, same = (MemoryPbqp(plain, [1, 1], [0], [1], 5, name) for name in "ab")
    assert one.hash() == same.hash() != MemoryPbqp(plain, [1, 1], [0], [1], 6).hash()
