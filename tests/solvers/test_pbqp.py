"""The PBQP engine against brute force."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import InputError
from placewright.solvers.pbqp import Pbqp, solve_pbqp

Edges = list[tuple[int, int, Any]]


def random_pbqp(
    rng: np.random.Generator, n: int, density: float, options: int = 3, forbidden: float = 0.0
) -> tuple[list[Any], Edges]:
    """Node vectors and edge matrices, integral in half of the cases."""
    sizes = rng.integers(1, options + 1, n)
    whole = rng.random() < 0.5

    def draw(*shape: int) -> Any:
        costs = rng.integers(-3, 10, shape).astype(float) if whole else rng.random(shape) * 10
        costs[rng.random(shape) < forbidden] = np.inf
        return costs

    pairs = [p for p in itertools.combinations(range(n), 2) if rng.random() < density]
    edges = [(i, j, draw(sizes[i], sizes[j])) for i, j in pairs]
    return [draw(k) for k in sizes], edges


def cost_of(nodes: list[Any], edges: Edges, x: Any) -> float:
    """What an assignment costs, term by term."""
    own = sum(c[a] for c, a in zip(nodes, x, strict=True))
    return float(own + sum(m[x[i], x[j]] for i, j, m in edges))


def cheapest(nodes: list[Any], edges: Edges) -> float:
    """Every assignment tried."""
    every = itertools.product(*(range(len(c)) for c in nodes))
    return min(cost_of(nodes, edges, x) for x in every)


def same(a: float, b: float) -> bool:
    """Equal up to rounding."""
    return a == b or abs(a - b) <= 1e-9 * max(1.0, abs(b))


def test_branching_is_exact_on_random_graphs() -> None:
    """With branching every small problem is solved and proved, forbidden entries or not."""
    for seed in range(600):
        rng = np.random.default_rng(seed)
        forbidden = [0.0, 0.2][seed % 2]
        nodes, edges = random_pbqp(rng, int(rng.integers(1, 8)), rng.random(), 3, forbidden)
        solution = solve_pbqp(Pbqp.of(nodes, edges))
        best = cheapest(nodes, edges)
        assert same(solution.value, best), seed
        assert solution.proved, seed
        assert not solution.lower_bound > best + 1e-9 * max(1.0, abs(best)), seed
        if np.isfinite(best):
            assert same(cost_of(nodes, edges, solution.choice), best), seed


def test_reductions_are_exact_and_rn_is_near() -> None:
    """Without RN the answer is optimal; where RN fires it is never better and near on average."""
    gaps = []
    for seed in range(600):
        rng = np.random.default_rng(seed)
        n, density = int(rng.integers(3, 8)), rng.uniform(0.2, 1.0)
        nodes = [rng.random(3) * 10 for _ in range(n)]
        pairs = [p for p in itertools.combinations(range(n), 2) if rng.random() < density]
        edges = [(i, j, rng.random((3, 3)) * 2) for i, j in pairs]
        solution = solve_pbqp(Pbqp.of(nodes, edges), exact=False)
        best = cheapest(nodes, edges)
        if solution.heuristic_decisions == 0:
            assert solution.proved, seed
            assert same(solution.value, best), seed
        else:
            assert solution.value >= best - 1e-9, seed
            gaps.append(solution.value / best - 1)
    assert len(gaps) > 50
    assert np.mean(gaps) < 0.01


def series_parallel(rng: np.random.Generator, size: int) -> list[tuple[int, int]]:
    """Edges of a two-terminal series-parallel graph grown from one edge."""
    pairs, nodes = [(0, 1)], 2
    while len(pairs) < size:
        u, v = pairs[int(rng.integers(len(pairs)))]
        if rng.random() < 0.5:
            pairs.remove((u, v))
            pairs += [(u, nodes), (nodes, v)]
        else:
            pairs += [(u, nodes), (nodes, v)]
        nodes += 1
    return pairs


@pytest.mark.parametrize("seed", range(20))
def test_series_parallel_graphs_never_need_rn(seed: int) -> None:
    """Series-parallel graphs reduce to nothing by R0, RI and RII, whatever the costs."""
    rng = np.random.default_rng(seed)
    pairs = series_parallel(rng, int(rng.integers(2, 300)))
    n = max(max(p) for p in pairs) + 1
    problem = Pbqp.of(
        [rng.random(4) for _ in range(n)], [(i, j, rng.random((4, 4))) for i, j in pairs]
    )
    solution = solve_pbqp(problem, exact=False)
    assert solution.heuristic_decisions == 0
    assert solution.proved


def chain_optimum(nodes: list[Any], matrices: list[Any]) -> float:
    """Dynamic programme along a chain."""
    best = nodes[0]
    for cost, matrix in zip(nodes[1:], matrices, strict=True):
        best = cost + (best[:, None] + matrix).min(axis=0)
    return float(best.min())


def test_long_chain_equals_dynamic_programming() -> None:
    """2,000 nodes in a chain: RI alone, equal to the textbook recursion."""
    rng = np.random.default_rng(3)
    nodes = [rng.random(4) for _ in range(2000)]
    matrices = [rng.random((4, 4)) for _ in range(1999)]
    edges = [(i, i + 1, m) for i, m in enumerate(matrices)]
    assert same(solve_pbqp(Pbqp.of(nodes, edges)).value, chain_optimum(nodes, matrices))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.floats(0.05, 1.0))
def test_bounds_and_choice_are_consistent(seed: int, n: int, density: float) -> None:
    """The value is that of the choice, at least the bound, at most any greedy answer."""
    nodes, edges = random_pbqp(np.random.default_rng(seed), n, density, 4)
    problem = Pbqp.of(nodes, edges)
    exact = solve_pbqp(problem, branch_limit=20)
    greedy = solve_pbqp(problem, exact=False)
    assert same(exact.value, cost_of(nodes, edges, exact.choice))
    assert exact.lower_bound <= exact.value
    assert exact.value <= greedy.value
    again = solve_pbqp(problem, branch_limit=20)
    assert np.array_equal(again.choice, exact.choice)


def test_parallel_edges_and_loops_are_added_up() -> None:
    """An edge given twice, once reversed, counts twice; a loop is a node cost."""
    rng = np.random.default_rng(0)
    nodes = [rng.random(2), rng.random(3)]
    matrix, reverse, loop = rng.random((2, 3)), rng.random((3, 2)), rng.random((2, 2))
    edges = [(0, 1, matrix), (1, 0, reverse), (0, 0, loop)]
    solution = solve_pbqp(Pbqp.of(nodes, edges))
    assert same(solution.value, cheapest(nodes, edges))


def test_nothing_allowed_is_proved_infinite() -> None:
    """Where forbidden entries leave no assignment the value is inf, and that is proved."""
    never = np.full((2, 2), np.inf)
    solution = solve_pbqp(Pbqp.of([[1.0, 2.0], [1.0, 2.0]], [(0, 1, never)]))
    assert solution.value == np.inf
    assert solution.proved


def test_passed_deadline_still_answers() -> None:
    """With no time to branch the heuristic answer comes back with a true bound."""
    rng = np.random.default_rng(5)
    nodes = [rng.random(3) for _ in range(9)]
    pairs = itertools.combinations(range(9), 2)
    edges = [(i, j, rng.random((3, 3)) * 5) for i, j in pairs]
    solution = solve_pbqp(Pbqp.of(nodes, edges), deadline_s=0.0)
    best = cheapest(nodes, edges)
    assert solution.branches == 0
    assert solution.lower_bound <= best + 1e-9 <= solution.value + 2e-9


def test_bad_input_is_named() -> None:
    """A matrix of the wrong shape, NaN and a missing node are errors that say where."""
    with pytest.raises(InputError, match=r"edge \(0, 1\).*\(2, 2\)"):
        Pbqp.of([[1.0, 2.0], [1.0]], [(0, 1, np.zeros((2, 2)))])
    with pytest.raises(InputError, match="NaN"):
        Pbqp.of([[1.0, float("nan")]])
    with pytest.raises(InputError, match="node 3 does not exist"):
        Pbqp.of([[1.0]], [(0, 3, np.zeros((1, 1)))])
    with pytest.raises(InputError, match="at least one option"):
        Pbqp.of([[1.0], []])
