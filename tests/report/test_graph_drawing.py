"""Drawing of the graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.operators.conformance import tiny
from placewright.operators.views import coloured_graph
from placewright.report.graph_drawing import (
    MOST_NODES,
    bands,
    operator_depths,
    picture,
    placed_drawing,
)
from tests.report.examples import chain


def longest_path(consumers: list[list[int]], i: int) -> int:
    """Operators before `i` on the longest path, by plain recursion."""
    before = [k for k, readers in enumerate(consumers) if i in readers]
    return max((longest_path(consumers, k) + 1 for k in before), default=0)


@given(st.integers(1, 9), st.integers(0, 1000))
def test_depth_is_the_longest_path(n: int, seed: int) -> None:
    """Against a slow reference on random graphs."""
    rng = np.random.default_rng(seed)
    readers = [[j for j in range(i + 1, n) if rng.random() < 0.4] for i in range(n)]
    tensors = [(i, 1.0, r) for i, r in enumerate(readers) if r]
    graph = coloured_graph(tiny([[1.0]] * n, tensors), np.zeros(n, dtype=np.int64))
    assert operator_depths(graph).tolist() == [longest_path(readers, i) for i in range(n)]


@pytest.mark.parametrize("count", [5, MOST_NODES, MOST_NODES + 1, 3000])
def test_seconds_and_operators_are_kept_by_grouping(count: int) -> None:
    """Groups hold every operator once, and all of its time."""
    problem = chain(count)
    placement = np.arange(count) // 10 % 2
    shown = picture(coloured_graph(problem, placement))
    assert sum(node.count for node in shown.nodes) == count
    total = problem.compute_s[np.arange(count), placement].sum()
    assert sum(node.seconds for node in shown.nodes) == pytest.approx(total)
    assert len(shown.nodes) <= MOST_NODES
    assert bool(shown.grouped) == (count > MOST_NODES)


def test_every_node_has_a_place_of_its_own() -> None:
    """All nodes are laid out once."""
    shown = picture(coloured_graph(chain(50), np.zeros(50, dtype=np.int64)))
    placed = [node for band in bands(shown) for column in band for node in column]
    assert sorted(placed) == list(range(50))


def test_what_crosses_devices_stands_out() -> None:
    """A chain that changes device twice has two bold lines."""
    svg, caption = placed_drawing(coloured_graph(chain(6), np.array([0, 0, 1, 1, 0, 0])))
    assert svg.count("edge cross") == 2
    assert "the 2 connections that cross devices" in caption
