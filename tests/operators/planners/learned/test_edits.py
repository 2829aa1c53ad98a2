"""Edits of good placements."""

from __future__ import annotations

import numpy as np

from placewright.operators.conformance import random_problem, tiny
from placewright.operators.planners.learned.edits import edges_of, edit, edited
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.features import group_operators
from placewright.operators.planners.learned.planner import softmax


def test_edits_keep_refusals_and_are_deterministic() -> None:
    """Every group stays on a device that can run it; the same seed draws the same edits."""
    for seed in range(30):
        problem = random_problem(seed)
        evaluations = Evaluations(problem)
        grouping = group_operators(problem, "colocation", problem.n)
        edges, uniform = (
            edges_of(problem, grouping),
            softmax(np.zeros(grouping.allowed.shape), grouping.allowed),
        )
        rng = np.random.default_rng(seed)
        rows = edited(evaluations, grouping, edges, uniform, 50, rng)
        assert rows.shape == (50, grouping.count)
        assert grouping.allowed[np.arange(grouping.count), rows].all()
        again = edited(evaluations, grouping, edges, uniform, 50, np.random.default_rng(seed))
        assert (rows == again).all()


def test_a_tensor_that_crosses_is_joined() -> None:
    """On a chain split in two, most edits move one end of the cut to the other's device."""
    problem = tiny([[1.0, 1.0]] * 6, [(i, 1.0, [i + 1]) for i in range(5)])
    grouping = group_operators(problem, "colocation", 6)
    edges, rng, joined = edges_of(problem, grouping), np.random.default_rng(0), 0
    assert (edges.source.tolist(), edges.target.tolist()) == ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5])
    for _ in range(200):
        row = np.array([0, 0, 0, 1, 1, 1])
        edit(row, grouping, edges, np.full((6, 2), 0.5), rng)
        joined += row.tolist() in ([0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1])
    assert 100 < joined < 180
