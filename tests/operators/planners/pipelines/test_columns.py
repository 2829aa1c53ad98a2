"""The bound by columns is below every plan, and near the best one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, combinations

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import IntArray
from placewright.operators.planners.pipelines import columns
from placewright.operators.planners.pipelines.columns import (
    Loads,
    States,
    column_bound,
    dearest_columns,
    narrow_order,
    proving,
    traced,
    transitions,
)
from placewright.operators.planners.pipelines.contraction import Contraction, contract
from placewright.operators.planners.pipelines.slots import slot_kinds
from placewright.operators.readers.neural_networks import read_msr
from tests.operators.star_cases import best_value, star
from tests.published import published


def bound_of(c: Contraction, value_s: float) -> float:
    """Without a thread."""
    kinds, halt = np.array(slot_kinds(c)), np.zeros(1, dtype=np.int64)
    return column_bound(c, kinds, value_s, deadline_s=math.inf, halt=halt)


@pytest.mark.parametrize("cells", [2, 10, 2000])
def test_no_plan_is_below_it(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However coarse the loads are; with fine ones it comes near to the best plan."""
    monkeypatch.setattr(columns, "EFFORTS", ((cells, 1e9),))
    monkeypatch.setattr(columns, "SMALL", 0.0)
    ratios = []
    for seed in range(25):
        problem = star(seed, memory_bytes=np.full(star(seed).m, np.inf))
        try:
            c = contract(problem, contiguous=False)
        except InfeasibleError:
            continue
        best = best_value(problem)
        found = bound_of(c, best)
        assert found <= best * (1 + 1e-9)
        ratios.append(found / best if best else 1.0)
    assert len(ratios) > 15
    assert np.mean(ratios) > 0.97 or cells < 2000


@pytest.mark.parametrize("cells", [3, 30, 20_000])
def test_the_dearest_column_is_the_best_of_all_sets(cells: int) -> None:
    """Never below it; with fine cells it is that one, and what is traced has its price and load."""
    for seed in range(20):
        problem = star(seed, memory_bytes=np.full(star(seed).m, np.inf))
        c = contract(problem, contiguous=False)
        rng = np.random.default_rng(seed)
        price, limit_s = rng.random(c.nodes), 0.4 * c.most_s
        sets = [np.array(s, dtype=np.int64) for s in subsets(c.nodes)]
        priced = [(price[s].sum(), s) for s in sets if load_of(c, s) <= limit_s]
        best = max(value for value, _ in priced)
        order = narrow_order(c)
        steps = transitions(c, order)
        assert steps is not None
        loads = Loads(
            np.ascontiguousarray(c.work_s[order, 0]),
            price[order],
            np.array([limit_s, c.host_rate[0]]),
        )
        before = np.empty((steps.first[-1] + 1, cells), dtype=np.int32)
        shape = int(np.diff(steps.first).max()), cells
        now, then = (States(np.empty(shape), np.empty(shape)) for _ in range(2))
        halt = np.zeros(1, dtype=np.int64)
        curve = dearest_columns(steps, loads, now, then, before, halt)
        assert curve.max() >= best - 1e-12
        if cells == 20_000:
            chosen = order[traced(steps, before, int(curve.argmax()))]
            assert price[chosen].sum() == pytest.approx(curve.max())
            assert curve.max() == pytest.approx(best)
            assert load_of(c, chosen) <= limit_s * (1 + 1e-9)


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    """All sets of numbers below it."""
    return chain.from_iterable(combinations(range(count), k) for k in range(count + 1))


def load_of(c: Contraction, chosen: IntArray) -> float:
    """Work of a set on a device of the first kind, and what crosses its border."""
    inside = set(chosen.tolist())
    crossing = [0 < len(inside.intersection(members)) < len(members) for members in c.members]
    return float(c.work_s[chosen, 0].sum() + c.moved_bytes[crossing].sum() * c.host_rate[0])


def test_what_costs_little_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is lower then, and still a bound."""
    monkeypatch.setattr(columns, "SMALL", 0.2)
    for seed in range(20):
        problem = star(seed, memory_bytes=np.full(star(seed).m, np.inf))
        c = contract(problem, contiguous=False)
        assert bound_of(c, best_value(problem)) <= best_value(problem) * (1 + 1e-9)


def test_a_value_far_above_the_best_plan_does_no_harm() -> None:
    """Targets that a plan reaches are not refuted."""
    for seed in range(20):
        problem = star(seed, memory_bytes=np.full(star(seed).m, np.inf))
        c = contract(problem, contiguous=False)
        best = best_value(problem)
        assert bound_of(c, 3 * best) <= best * (1 + 1e-9)


def test_orders_name_every_node_once() -> None:
    """Also where the graph is in several pieces."""
    for seed in range(20):
        roomy = star(seed, operators=12, memory_bytes=np.full(star(seed).m, np.inf))
        c = contract(roomy, contiguous=False)
        assert sorted(narrow_order(c).tolist()) == list(range(c.nodes))


def test_the_thread_ends_when_the_bound_is_asked_for() -> None:
    """With what was proved by then, which is never below the load bound."""
    problem = star(3, memory_bytes=np.full(star(3).m, np.inf))
    c = contract(problem, contiguous=False)
    best = best_value(problem)
    with proving(c, np.array(slot_kinds(c)), best, deadline_s=math.inf) as bound:
        assert 0 < bound() <= best * (1 + 1e-9)


def test_hyperedges_are_left_out_until_states_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one state per node there is none left, and the bound is still one."""
    monkeypatch.setattr(columns, "MOST_STATES", 20)
    for seed in range(20):
        problem = star(seed, memory_bytes=np.full(star(seed).m, np.inf))
        c = contract(problem, contiguous=False)
        assert 0 < bound_of(c, best_value(problem)) <= best_value(problem) * (1 + 1e-9)


def test_a_long_graph_gets_nearly_its_best_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators of BERT-3: no plan is below 21.908 ms, and the load bound is 16.2 ms."""
    monkeypatch.setattr(columns, "CLOSE", 0.01)
    problem = read_msr(published("msr/throughput/op_bert3_inference.json"))
    c = contract(problem, contiguous=False)
    assert 0.97 * 21.908 <= 1e3 * bound_of(c, 0.021908) <= 21.908
