"""PBQP with memory over time against brute force, a second solver and published values."""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.published import published
from tests.solvers.memory_cases import optimum, random_case, slow_value

from placewright.errors import InfeasibleError
from placewright.numerics.compile_clock import CompileClock
from placewright.planning.contract import silent
from placewright.solvers import memory_search
from placewright.solvers._memory_contract import spans_of
from placewright.solvers._memory_core import Core, Loads, core_of
from placewright.solvers._memory_draft import _one_of_equals, draft, reduce
from placewright.solvers._memory_milp import prove
from placewright.solvers._memory_prices import Priced, Prices, level, solve_priced
from placewright.solvers._pbqp_work import Arrays
from placewright.solvers.iopddl import read_iopddl
from placewright.solvers.memory_pbqp import MemoryPbqp
from placewright.solvers.memory_search import MemoryPbqpSolution, solve_pbqp_memory
from placewright.solvers.pbqp import Pbqp, solve_pbqp


def solved(problem: MemoryPbqp, **options: Any) -> MemoryPbqpSolution | None:
    """The answer, ``None`` where it is proved that there is none."""
    try:
        return solve_pbqp_memory(problem, rounds=2, **options)
    except InfeasibleError:
        return None


@pytest.mark.parametrize("exact", [True, False])
def test_bounds_and_values_are_true_on_random_problems(exact: bool) -> None:
    """Never above the optimum's bound, never below its value; proved answers are optimal."""
    if exact:
        pytest.importorskip("highspy", reason="the extra `exact` is not installed")
    proved = infeasible = 0
    for seed in range(150):
        problem = random_case(seed)
        best, found = optimum(problem), solved(problem, exact=exact)
        if found is None:
            assert best == np.inf, seed
            infeasible += 1
            continue
        assert found.lower_bound <= best, seed
        assert found.value >= best, seed
        if found.value < np.inf:
            assert slow_value(problem, found.choice) == found.value, seed
        if found.proved:
            assert found.value == best, seed
            proved += 1
        assert found.proved or not exact or best == np.inf, seed
    assert infeasible > 5
    assert proved > 60


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4))
def test_any_shape_is_true(seed: int, n: int, options: int) -> None:
    """Other sizes, without the mixed-integer program: bound <= optimum <= value."""
    problem = random_case(seed, n, options)
    best, found = optimum(problem), solved(problem, exact=False)
    if found is None:
        assert best == np.inf
    else:
        assert found.lower_bound <= best <= found.value


@pytest.mark.parametrize(
    ("file", "value"), [("B", 532_843), ("A", 6_548_553_650), ("P", 651_833_115_436)]
)
def test_contest_files_are_proved(file: str, value: int) -> None:
    """B as published; A below the contest's best entry, 6,548,641,531; P equal to it."""
    pytest.importorskip("highspy", reason="the extra `exact` is not installed")
    problem = read_iopddl(published(f"iopddl/asplos-2025-iopddl-{file}.json.gz"))
    found = solve_pbqp_memory(problem)
    assert (found.value, found.lower_bound, found.proved) == (value, value, True)
    assert problem.value(found.choice) == value
    assert problem.peak(found.choice)[0] <= problem.limit


def test_contest_file_without_the_extra_is_near() -> None:
    """Prices and ejection chains alone: A within 1 % of the optimum, the bound within 2 %."""
    problem = read_iopddl(published("iopddl/asplos-2025-iopddl-A.json.gz"))
    found = solve_pbqp_memory(problem, exact=False, rounds=2)
    assert 6_548_553_650 <= found.value <= 1.01 * 6_548_553_650
    assert 0.98 * 6_548_553_650 <= found.lower_bound <= 6_548_553_650


def grid(side: int, options: int, seed: int = 0) -> MemoryPbqp:
    """A grid, which reductions do not solve, with a limit that binds."""
    rng = np.random.default_rng(seed)
    n = side * side
    nodes = [rng.integers(0, 50, options) for _ in range(n)]
    right = [(i, i + 1) for i in range(n) if i % side < side - 1]
    edges = [
        (i, j, rng.integers(0, 50, (options, options)))
        for i, j in right + [(i, i + side) for i in range(n - side)]
    ]
    live_from = rng.integers(0, 20, n)
    usage = rng.integers(0, 10, n * options)
    return MemoryPbqp(Pbqp.of(nodes, edges), usage, live_from, live_from + 5, 2 * n)


def test_same_seed_same_answer() -> None:
    """Where no deadline cuts the search; another seed may differ."""
    problem = grid(8, 4)
    first = solve_pbqp_memory(problem, exact=False, rounds=2, seed=3)
    second = solve_pbqp_memory(problem, exact=False, rounds=2, seed=3)
    assert first.choice.tolist() == second.choice.tolist()
    assert (first.value, first.lower_bound) == (second.value, second.lower_bound)


def test_search_agrees_with_the_proof() -> None:
    """On grids both ways meet: the proof is never above the search, and near it."""
    pytest.importorskip("highspy", reason="the extra `exact` is not installed")
    for seed in range(3):
        problem = grid(6, 3, seed)
        proof, search = solve_pbqp_memory(problem), solve_pbqp_memory(problem, exact=False)
        assert proof.proved
        assert search.lower_bound <= proof.value <= search.value <= 1.02 * proof.value


def test_a_solver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """How to install it, and what was used instead."""
    monkeypatch.setattr("placewright.solvers.programs.importlib.util.find_spec", lambda x: None)
    found = solve_pbqp_memory(grid(6, 3), rounds=1)
    assert "pip install 'placewright[exact]'" in found.note
    assert "instead" in found.note


def test_passed_deadline_still_answers() -> None:
    """With no time at all there is an assignment and a true bound."""
    problem = grid(6, 3)
    found = solve_pbqp_memory(problem, deadline_s=time.perf_counter())
    assert len(found.choice) == problem.n
    assert found.lower_bound <= found.value


def test_compiling_prolongs_only_the_search_for_something_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seconds of compiling come on top of the deadline until then."""
    clock = CompileClock(lambda: None)
    monkeypatch.setattr(CompileClock, "seconds", 10.0)
    search = memory_search._Search(random_case(0), 100.0, 0, silent, clock)
    assert search.deadline_s == 110.0
    search.best = np.zeros(1, np.int64)
    assert search.deadline_s == 100.0


def test_a_far_deadline_changes_nothing() -> None:
    """The proof is the same with a limit on its time."""
    pytest.importorskip("highspy", reason="the extra `exact` is not installed")
    problem = grid(5, 3)
    timed = solve_pbqp_memory(problem, deadline_s=time.perf_counter() + 600)
    assert timed.proved
    assert timed.choice.tolist() == solve_pbqp_memory(problem).choice.tolist()


def test_interrupt_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the search hands back what was found."""

    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(memory_search, "anneal", stop)
    found = solve_pbqp_memory(grid(6, 3), exact=False)
    assert found.interrupted
    assert found.value < np.inf


def test_memory_that_never_binds_is_the_plain_problem() -> None:
    """Values and proof are those of the plain engine."""
    rng = np.random.default_rng(0)
    nodes = [rng.integers(0, 99, 3) for _ in range(40)]
    edges = [(i, i + d, rng.integers(0, 99, (3, 3))) for i in range(37) for d in (1, 3)]
    plain = Pbqp.of(nodes, edges)
    problem = MemoryPbqp(plain, np.ones(120), np.zeros(40), np.ones(40), 40)
    assert solve_pbqp_memory(problem).value == solve_pbqp(plain).value


def test_impossible_moment_is_named() -> None:
    """The error says when, and by how much the limit is too low at the least."""
    problem = MemoryPbqp(Pbqp.of([[0, 0], [0]]), [5, 4, 7], [0, 3], [9, 6], 10)
    with pytest.raises(InfeasibleError, match=r"moment 3: .*11, 1 above the limit 10"):
        solve_pbqp_memory(problem)


def test_forbidden_everywhere_names_the_node() -> None:
    """A node whose every option is excluded by a neighbour."""
    never = np.full((2, 2), np.inf)
    problem = MemoryPbqp(
        Pbqp.of([[0], [0, 1], [0, 1]], [(1, 2, never)]), [0] * 5, [0] * 3, [0] * 3, 1
    )
    with pytest.raises(InfeasibleError, match="node 1"):
        solve_pbqp_memory(problem)


def colouring(n: int, colours: int) -> Pbqp:
    """No two nodes of one colour, each pair joined."""
    apart = np.where(np.eye(colours) > 0, np.inf, 0.0)
    pairs = itertools.combinations(range(n), 2)
    return Pbqp.of([np.arange(colours)] * n, [(i, j, apart) for i, j in pairs])


def test_forbidden_costs_are_not_blamed_on_memory() -> None:
    """Four nodes, three colours: there is room, but no assignment."""
    problem = MemoryPbqp(colouring(4, 3), np.arange(12), np.zeros(4), np.ones(4), 100)
    with pytest.raises(InfeasibleError, match="forbidden costs"):
        solve_pbqp_memory(problem)


def test_prices_are_finite_where_reductions_end_in_a_forbidden_pair() -> None:
    """The first prices are then measured by the bound."""
    problem = MemoryPbqp(colouring(4, 4), np.arange(16), np.zeros(4), np.ones(4), 25)
    spans = spans_of(problem.usage, problem.pbqp.start, problem.live_from, problem.live_until)
    core, prices = core_of(draft(problem.pbqp.arrays, spans), problem.limit), []

    def solve(price: np.ndarray) -> Priced:
        prices.append(price)
        return Priced(price, np.zeros(4, np.int64), core.loads.room + 1, math.inf, 6.0)

    level(core, Prices.of(core), solve, lambda found: None, lambda: True)
    assert len(prices) > 2
    assert all(np.isfinite(price).all() for price in prices)


def test_prices_far_apart_keep_the_bound_true() -> None:
    """Two nodes that fill two rows, one of them small and dear; the optimum is 0."""
    i, none = np.array, np.zeros(0, np.int64)
    arrays = Arrays(i([0, 1, 2]), np.zeros(2), none.reshape(0, 2), none, np.zeros(0))
    loads = Loads(i([1, 10**12]), i([0, 1, 2]), i([0, 1]), i([1, 2]), i([0, 1]), i([1, 10**12]))
    core = Core(arrays, loads, i([0, 1]), i([0, 1]), 0.0)
    assert -1 < solve_priced(core, i([1e7, 1e-7]), math.inf).bound <= 0


def test_a_proof_that_never_began_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is up between the linear program and branching; costs are below zero."""
    pytest.importorskip("highspy", reason="the extra `exact` is not installed")
    problem = MemoryPbqp(Pbqp.of([[-3, -5]]), [0, 0], [0], [0], 1)
    spans = spans_of(problem.usage, problem.pbqp.start, problem.live_from, problem.live_until)
    core, bounds = core_of(draft(problem.pbqp.arrays, spans), problem.limit), list[float]()
    clock = iter([0.0, 0.0, 10.0])
    monkeypatch.setattr("placewright.solvers.programs.time.perf_counter", lambda: next(clock))
    assert not prove(core, None, -3.0, 1.0, lambda choice: None, bounds.append)
    assert max(bounds) <= -5


def test_folding_many_options_takes_the_memory_of_one_edge() -> None:
    """Not that of a table of all three nodes of a triangle, 150 options each."""
    rng, k = np.random.default_rng(0), 150
    ends = [(0, 1), (1, 2), (0, 2)]
    pbqp = Pbqp.of([rng.random(k) for _ in range(3)], [(*e, rng.random((k, k))) for e in ends])
    never = np.zeros(3, dtype=np.int64)
    spans = spans_of(np.zeros(3 * k, dtype=np.int64), pbqp.start, never, never)
    made = draft(pbqp.arrays, spans)
    tracemalloc.start()
    reduced = reduce(made)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 10 * 8 * k**2
    assert reduced.constant == pytest.approx(solve_pbqp(pbqp).value)


def test_of_options_that_beat_each_other_in_a_circle_one_stays() -> None:
    """Rounding can make such circles; of equal options the first stays."""
    circle = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=np.bool_)
    assert not _one_of_equals(circle).all()
    assert _one_of_equals(np.ones((3, 3), dtype=np.bool_)).tolist() == [False, True, True]
