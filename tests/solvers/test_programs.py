"""Linear programs against enumeration, and what is claimed where there is no answer."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.solvers.programs import LinearProgram

pytest.importorskip("highspy")


def shared(work: FloatArray, most: float, *, whole: bool = True) -> tuple[LinearProgram, IntArray]:
    """Items shared out among machines so that the largest sum of work is least.

    Machine 0 takes at most `most` items, and no item can be on the last machine twice.
    """
    program = LinearProgram()
    largest = program.columns(high=1e3, cost=1.0, name="largest")
    x = program.columns(work.shape, high=1.0, whole=whole, name="x")
    program.enter(program.rows(len(work), 1.0, 1.0)[:, None], x, 1.0)
    load = program.rows(work.shape[1], high=0.0)
    program.enter(load, x, work)
    for _ in range(2):  # factors of one column are added up
        program.enter(load, largest, -0.5)
    program.enter(program.rows(high=most), x[:, 0], 1.0)
    return program, x


def least(work: FloatArray, most: float) -> float:
    """By trying them all; ``inf`` where nothing is allowed."""
    n, m = work.shape
    values = [
        max(sum(work[i, d] for i in range(n) if place[i] == d) for d in range(m))
        for place in product(range(m), repeat=n)
        if place.count(0) <= most
    ]
    return min(values, default=np.inf)


def random_work(seed: int) -> FloatArray:
    """Up to five items on up to three machines."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 9, (int(rng.integers(1, 6)), int(rng.integers(1, 4)))).astype(float)


@pytest.mark.parametrize("seed", range(12))
def test_the_least_is_found_and_proved(seed: int) -> None:
    """Values, bound and choice; also from a start."""
    work = random_work(seed)
    most = float(seed % 4) if work.shape[1] > 1 else 9.0
    program, x = shared(work, most)
    if seed % 2:
        program.start(x, np.arange(work.shape[1]) == work.shape[1] - 1)
    found = program.solve()
    assert found.proved
    assert found.gap <= 1e-6
    for value in (found.value, found.bound, found["largest"]):
        assert value == pytest.approx(least(work, most), abs=1e-5)
    assert found["x"].sum(axis=1) == pytest.approx(1.0, abs=1e-5)


def test_what_cannot_be_is_said() -> None:
    """One machine that takes nothing."""
    program, _ = shared(np.ones((2, 1)), 0.0)
    found = program.solve()
    assert found.infeasible
    assert found.values is None
    assert found.bound == np.inf


def test_nothing_is_solved_after_the_deadline() -> None:
    """No values, and nothing proved."""
    program, _ = shared(np.ones((2, 2)), 9.0)
    found = program.solve(time.perf_counter())
    assert (found.values, found.bound, found.proved, found.gap) == (None, -np.inf, False, np.inf)


@pytest.mark.parametrize("seed", range(12))
def test_any_multipliers_prove_a_bound(seed: int) -> None:
    """No more than the optimum; those of the answer prove all of it."""
    work = random_work(seed)
    program, _ = shared(work, 9.0, whole=False)
    found = program.solve()
    assert found.multipliers is not None
    assert program.proved(found.multipliers)[0] == pytest.approx(found.value, abs=1e-6)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        multipliers = rng.normal(0, 1, program.size.rows)
        assert program.proved(multipliers)[0] <= found.value + 1e-9


def test_it_goes_on_with_more_columns_rows_and_bounds() -> None:
    """Another machine, then a limit on it, then whole items."""
    work = np.full((3, 1), 2.0)
    program, x = shared(work, 9.0, whole=False)
    assert program.solve().value == pytest.approx(6.0)
    load = program.rows(high=0.0)
    more = program.columns(3, high=1.0)
    program.enter(np.arange(3), more, 1.0)  # the rows that came first: one machine each
    program.enter(load, more, 2.0)
    program.enter(load, 0, -1.0)
    assert program.solve().value == pytest.approx(3.0)
    program.limit(more[:2], 0.0)
    assert program.solve().value == pytest.approx(4.0)
    program.enter(program.rows(high=0.5), more, 1.0)
    found = program.solve()
    assert found.value == pytest.approx(5.0)
    assert found.values is not None
    assert program.broken(found.values).max() <= 1e-7
    assert program.broken(np.append(found.values[:-1], 1.0)).max() == pytest.approx(0.5)
    program.require_whole(np.append(x, more))
    assert program.solve().value == pytest.approx(6.0)


def test_columns_that_are_not_there_take_no_part() -> None:
    """Their number is -1, their value minus infinity; blocks of one name are one."""
    program = LinearProgram()
    x = program.columns((2, 2), high=1.0, cost=-1.0, where=[[True, False], [False, True]], name="x")
    y = program.columns((1, 2), high=3.0, cost=-0.5, name="x")
    assert x.tolist() == [[0, -1], [-1, 1]]
    rows = program.rows(2, high=2.0, where=[False, True])
    program.enter(rows, y, 1.0)
    program.enter(rows[:, None], x, 1.0)
    assert program.size == (4, 1, 2)
    assert program.size.memory_bytes > 0
    assert program.solve()["x"].tolist() == [[1.0, -np.inf], [-np.inf, 1.0], [3.0, 1.0]]


def test_progress_has_values_and_bounds() -> None:
    """In the thread that waits, while the solver branches; Ctrl-C there ends it with an answer."""
    rng = np.random.default_rng(0)
    program, seen = shared(rng.uniform(1.0, 9.0, (40, 6)), 40.0)[0], list[tuple[float, float]]()

    def note(value: float, bound: float) -> None:
        seen.append((value, bound))
        raise KeyboardInterrupt

    found = program.solve(progress=note)
    assert found.interrupted
    assert found.bound <= found.value
    assert all(bound <= value * (1 + 1e-9) for value, bound in seen)


def test_columns_that_need_not_be_whole_beside_whole_ones() -> None:
    """Nine at x = 4.5; HiGHS 1.14 answers ten where it presolves (its issue 3043)."""
    program = LinearProgram()
    x = program.columns(high=10.0, cost=2.0)
    z = program.columns(high=10.0, cost=3.0, whole=True)
    row = program.rows(low=4.5)
    program.enter(row, x, 1.0)
    program.enter(row, z, 1.0)
    assert program.solve().value == pytest.approx(9.0)
