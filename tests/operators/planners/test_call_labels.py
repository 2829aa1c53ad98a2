"""Chains of calls: what a deadline that has passed leaves of them."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from placewright.operators.planners import call_graph as graphs
from placewright.operators.planners.call_graph import call_graph, ideals, line, predecessors
from placewright.operators.planners.call_labels import best_chain
from placewright.operators.planners.exact_latency import one_call_each
from tests.operators.star_instances import best_latency, star_problem


@pytest.mark.parametrize("part", ["tails", "_later", "_borders"])
def test_preparing_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Lattices of thousands of operators or ideals take seconds: no chain, and nothing proved."""
    problem = star_problem(0, operators=6, accelerators=2)
    graph = call_graph(problem, np.zeros(problem.n, dtype=np.bool_))
    assert math.isfinite(best_chain(graph, line(graph)).value_s)
    begun = getattr(graphs, part)

    def late(*arguments: Any) -> Any:
        """The deadline passes as the part begins."""
        return begun(*arguments[:-1], time.perf_counter() - 1.0)

    monkeypatch.setattr(graphs, part, late)
    found = best_chain(graph, line(graph), deadline_s=time.perf_counter() + 100.0)
    assert (found.value_s, found.bound_s) == (math.inf, 0.0)
    assert found.place.tolist() == [-1] * problem.n


def test_with_an_accelerator_for_every_call_no_plan_is_shorter() -> None:
    """No bound is lower than with a copy of each accelerator for every operator."""
    higher = 0
    for seed in range(30):
        p = star_problem(seed, operators=5)
        graph, best = call_graph(p, np.zeros(p.n, dtype=np.bool_)), best_latency(p)
        if not graph.exact or math.isinf(best):
            continue
        sets = ideals(predecessors(graph), 1000)
        assert sets is not None
        found = best_chain(graph, sets, unlimited=True)
        assert found.bound_s <= best * (1 + 1e-12)
        copies = call_graph(one_call_each(p.replace(calls=p.n)), np.zeros(p.n, dtype=np.bool_))
        assert best_chain(copies, sets).value_s <= found.bound_s * (1 + 1e-12)
        higher += found.bound_s > 0.9 * best
    assert higher > 10
