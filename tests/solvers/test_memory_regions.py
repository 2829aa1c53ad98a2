"""Memory over time in runs and in a tree, and rebuilt regions, against counting."""

from __future__ import annotations

import numpy as np
from tests.solvers.memory_cases import random_case

from placewright.errors import InfeasibleError
from placewright.solvers._memory_contract import spans_of
from placewright.solvers._memory_core import Core, core_of, expected, loaded, priced
from placewright.solvers._memory_draft import draft
from placewright.solvers._memory_moves import repair_memory, reset, state_of
from placewright.solvers._memory_regions import exchange, improve_region
from placewright.solvers._pbqp_search import reduce_greedily
from placewright.solvers._pbqp_work import evaluate
from placewright.solvers.memory_pbqp import MemoryPbqp


def core(problem: MemoryPbqp) -> Core | None:
    """Of the problem as given, not reduced; ``None`` where some moment never fits."""
    spans = spans_of(problem.usage, problem.pbqp.start, problem.live_from, problem.live_until)
    try:
        return core_of(draft(problem.pbqp.arrays, spans), problem.limit)
    except InfeasibleError:
        return None


def used(problem: MemoryPbqp, choice: np.ndarray, moment: int) -> int:
    """Usage at a moment, counted."""
    own = problem.usage[problem.pbqp.start[:-1] + choice]
    return int(own[(problem.live_from <= moment) & (moment < problem.live_until)].sum())


def test_runs_and_tree_count_what_is_used() -> None:
    """Rows, prices, shares and the fullest row, after every change of some nodes."""
    compared = 0
    for seed in range(40):
        problem, rng = random_case(seed, 7, 3), np.random.default_rng(seed)
        c = core(problem)
        if c is None or len(c.moment) == 0:
            continue
        a, loads, width = c.arrays, c.loads, np.diff(c.arrays.start)
        choice = np.zeros(problem.n, np.int64)
        state = state_of(c, choice, np.zeros(len(c.moment)))
        for _ in range(5):
            nodes = np.sort(rng.permutation(problem.n)[:4])
            choice[nodes] = rng.integers(0, width[nodes])
            row, over = exchange(loads, state, nodes, choice[nodes])
            counted = np.array([used(problem, choice, t) for t in c.moment]) - problem.limit
            assert (loaded(a, loads, choice) - loads.room).tolist() == counted.tolist()
            assert over == counted.max()
            assert row == (-1 if over <= 0 else int(np.argmax(counted)))
        share = np.zeros(len(a.cost))
        share[a.start[:-1] + choice] = 1.0
        assert np.allclose(expected(a, loads, share), loaded(a, loads, choice))
        price = rng.random(len(c.moment))
        free = a._replace(cost=np.zeros(len(a.cost)))
        own = priced(free, loads, price)[a.start[:-1] + choice].sum()
        assert np.isclose(own, loaded(a, loads, choice) @ price)
        compared += 1
    assert compared > 15


def test_regions_fit_and_count_their_change() -> None:
    """What is accepted fits, and costs what it says."""
    accepted = 0
    for seed in range(200):
        problem, rng = random_case(seed, 8, 3), np.random.default_rng(seed)
        c = core(problem)
        if c is None or len(c.moment) == 0:
            continue
        price = np.ones(len(c.moment))
        dear = c.arrays._replace(cost=priced(c.arrays, c.loads, 9 * price))
        state = state_of(c, reduce_greedily(dear).choice, price)
        if not repair_memory(c.arrays, c.loads, state, 20):
            continue
        before = evaluate(c.arrays, state.choice)
        if not np.isfinite(before):
            continue
        for _ in range(10):
            change = improve_region(c, state, rng, int(rng.integers(1, 9)), 10.0)
            after = evaluate(c.arrays, state.choice)
            assert np.isclose(after - before, change)
            assert (loaded(c.arrays, c.loads, state.choice) <= c.loads.room).all()
            accepted, before = accepted + (change != 0.0), after
        reset(c.arrays, c.loads, state, state.choice.copy())
        assert state.over[1] <= 0
    assert accepted > 10, accepted
