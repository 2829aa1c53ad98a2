"""Stretches of a topological order."""

from __future__ import annotations

from placewright.operators.conformance import tiny
from placewright.operators.planners.trivial import TopologicalSplit
from placewright.planning.contract import Context


def test_transposed_weights_stay_with_their_readers() -> None:
    """Operators 4 to 7 read nothing and are each read by one of a chain: two and two by two."""
    chain = [(i, 1.0, [i + 1]) for i in range(3)]
    weights = [(4 + i, 1.0, [i]) for i in range(4)]
    problem = tiny([[1.0, 1.0]] * 8, [*chain, *weights])
    plan = TopologicalSplit()(problem, Context())
    assert plan.placement.tolist() == [0, 0, 1, 1] * 2
