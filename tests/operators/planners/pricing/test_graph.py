"""Placement as a PBQP: its edge costs against the true total time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.operators.conformance import random_placement, random_problem, tiny
from placewright.operators.judge import Judge
from placewright.operators.planners.pricing.graph import placement_graph, placement_pbqp
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.groups import group_costs


def totals(problem: OperatorProblem, seed: int) -> tuple[float, float, float]:
    """Shared, true and full total of one random placement; the truth is the serial judge's."""
    graph = placement_graph(problem)
    costs = group_costs(graph.groups, problem.compute_s)
    place = random_placement(problem, np.random.default_rng(seed))
    choice = place[graph.groups.first]
    low, high = (placement_pbqp(problem, graph, costs, fanout=f).value(choice) for f in (0.0, 1.0))
    truth = Judge(problem.replace(overlap="serial")).many(place)[0][0]
    return low, float(truth), high


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_true_total_lies_between_shared_and_full(seed: int) -> None:
    """Readers that share a transfer never cost more than the truth, readers that pay in full
    never less.
    """
    low, truth, high = totals(random_problem(seed), seed)
    if np.isfinite(truth):
        assert low <= truth + 1e-9 * (1 + abs(truth))
        assert truth <= high + 1e-9 * (1 + abs(truth))
    else:
        assert high == np.inf


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_one_reader_per_tensor_is_exact(seed: int) -> None:
    """Without fan-out the PBQP's value is the total time."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    tensors = [(int(rng.integers(0, j)), float(rng.random()), [j]) for j in range(1, n)]
    problem = tiny(rng.random((n, 3)).tolist(), tensors, latency_s=0.1)
    low, truth, high = totals(problem, seed)
    assert abs(low - truth) < 1e-9
    assert abs(high - truth) < 1e-9


def test_groups_are_one_node() -> None:
    """Colocated operators add their costs and do not pay each other."""
    problem = tiny([[1.0, 2.0]] * 3, [(0, 5.0, [1]), (1, 7.0, [2])], colocation=[0, 0, 2])
    graph = placement_graph(problem)
    assert group_costs(graph.groups, problem.compute_s).tolist() == [[2.0, 4.0], [1.0, 2.0]]
    assert graph.pairs.tolist() == [[0, 1]]
