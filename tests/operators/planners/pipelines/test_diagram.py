"""The bound of relaxed diagrams is below every plan, and near the best one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.planners.pipelines import diagram
from placewright.operators.planners.pipelines.contraction import Contraction, contract
from placewright.operators.planners.pipelines.diagram import (
    CLOSE,
    diagram_bound,
    narrow_order,
    proving,
)
from placewright.operators.planners.pipelines.slots import slot_kinds
from placewright.operators.readers.neural_networks import read_msr
from tests.operators.star_cases import best_value, star
from tests.published import published


def bound_of(c: Contraction, value_s: float) -> float:
    """Without a thread."""
    kinds, halt = np.array(slot_kinds(c)), np.zeros(1, dtype=np.int64)
    return diagram_bound(c, kinds, value_s, deadline_s=math.inf, halt=halt)


@pytest.mark.parametrize("width", [6, 40, 20_000])
def test_no_plan_is_below_it(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few states there is room for; with room for all it comes to the best plan."""
    monkeypatch.setattr(diagram, "WIDTH", width)
    monkeypatch.setattr(diagram, "COARSE", 1.0)
    monkeypatch.setattr(diagram, "SMALL", 0.0)
    tried = near = 0
    for seed in range(60):
        problem = star(seed, memory_bytes=np.full(star(seed).m, np.inf))
        try:
            c = contract(problem, contiguous=False)
        except InfeasibleError:
            continue
        best = best_value(problem)
        found = bound_of(c, best)
        assert found <= best * (1 + 1e-9)
        tried += 1
        near += found >= best * (1 - 2 * CLOSE)
    assert tried > 40
    assert near == tried or width < 20_000


def test_what_costs_little_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is lower then, and still a bound."""
    monkeypatch.setattr(diagram, "SMALL", 0.2)
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


def test_a_long_graph_gets_more_than_the_load_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators of BERT-3: no plan is below 21.908 ms, and the load bound is 16.2 ms."""
    monkeypatch.setattr(diagram, "CLOSE", 0.07)
    problem = read_msr(published("msr/throughput/op_bert3_inference.json"))
    c = contract(problem, contiguous=False)
    assert 0.93 * 18.5 <= 1e3 * bound_of(c, 0.0185) <= 21.908
