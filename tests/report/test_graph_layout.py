"""Layout of graphs: nested, without overlap, the same each time."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.report.graph_layout import (
    HEADER,
    MOST_CHILDREN,
    GraphLayout,
    LayoutGraph,
    layout,
    operator_depths,
)


def flow_of(readers: list[list[int]], modules: tuple[str, ...] = ()) -> LayoutGraph:
    """Operator i makes one tensor for `readers[i]`."""
    made = [i for i, r in enumerate(readers) if r]
    return LayoutGraph(
        tuple(f"op{i}" for i in range(len(readers))),
        np.array(made, dtype=np.int64),
        np.ones(len(made)),
        np.cumsum([0, *(len(readers[i]) for i in made)]),
        np.array([r for i in made for r in readers[i]], dtype=np.int64),
        np.zeros(len(made), dtype=np.bool_),
        modules,
    )


def random_flow(n: int, seed: int) -> LayoutGraph:
    """A random graph with nested modules that depend on each other in circles."""
    rng = np.random.default_rng(seed)
    readers = [[j for j in range(i + 1, n) if rng.random() < 3 / n] for i in range(n)]
    modules = tuple(f"a.{rng.integers(3)}.{rng.integers(2)}" for _ in range(n))
    return flow_of(readers, modules)


def longest_path(readers: list[list[int]], i: int) -> int:
    """Operators before `i` on the longest path, by plain recursion."""
    before = [k for k, found in enumerate(readers) if i in found]
    return max((longest_path(readers, k) + 1 for k in before), default=0)


@given(st.integers(1, 9), st.integers(0, 1000))
def test_depth_is_the_longest_path(n: int, seed: int) -> None:
    """Against a slow reference on random graphs."""
    rng = np.random.default_rng(seed)
    readers = [[j for j in range(i + 1, n) if rng.random() < 0.4] for i in range(n)]
    assert operator_depths(flow_of(readers)).tolist() == [
        longest_path(readers, i) for i in range(n)
    ]


def apart(laid: GraphLayout, a: int, b: int) -> bool:
    """Whether two nodes do not overlap."""
    return bool(
        laid.x[a] + laid.width[a] <= laid.x[b]
        or laid.x[b] + laid.width[b] <= laid.x[a]
        or laid.y[a] + laid.height[a] <= laid.y[b]
        or laid.y[b] + laid.height[b] <= laid.y[a]
    )


@given(st.integers(1, 60), st.integers(0, 1000))
def test_nothing_overlaps_and_boxes_hold_what_is_in_them(n: int, seed: int) -> None:
    """Siblings are apart; children are inside, below the title."""
    laid = layout(random_flow(n, seed))
    for box in range(len(laid.boxes)):
        inside, own = np.flatnonzero(laid.parent == box).tolist(), n + box
        assert inside
        assert all(apart(laid, a, b) for a, b in combinations(inside, 2))
        for k in inside:
            assert laid.x[own] <= laid.x[k]
            assert laid.y[own] + HEADER <= laid.y[k]
            assert laid.x[k] + laid.width[k] <= laid.x[own] + laid.width[own]
            assert laid.y[k] + laid.height[k] <= laid.y[own] + laid.height[own]


@pytest.mark.parametrize("n", [1, 40, MOST_CHILDREN + 1, 2000])
def test_every_operator_is_in_one_box_and_boxes_follow_their_parents(n: int) -> None:
    """Up from every operator one comes to the whole graph."""
    laid = layout(flow_of([[i + 1] for i in range(n - 1)] + [[]]))
    assert len(laid.x) == len(laid.parent) == n + len(laid.boxes)
    assert laid.parent[n] == -1
    for box in range(1, len(laid.boxes)):
        assert laid.parent[n + box] < box
    assert max(Counter(laid.parent[:n].tolist()).values()) <= MOST_CHILDREN


def test_the_same_graph_gives_the_same_layout() -> None:
    """To the last coordinate."""
    first, second = layout(random_flow(80, 3)), layout(random_flow(80, 3))
    assert first.x.tolist() == second.x.tolist()
    assert first.y.tolist() == second.y.tolist()
    assert first.parent.tolist() == second.parent.tolist()


def test_data_flow_from_left_to_right() -> None:
    """In a short chain each operator stands right of the one before; branches stand together."""
    laid = layout(flow_of([[1, 2], [3], [3], []]))
    assert laid.x[0] < laid.x[1] == laid.x[2] < laid.x[3]
    assert laid.y[1] != laid.y[2]


def test_modules_are_boxes() -> None:
    """Small ones and those that hold nothing but another are none; members of lists have a name."""
    modules = ("net.h.0",) * 4 + ("net.h.1",) * 4 + ("net.h.1.small",) + ("net.out",) * 4
    laid = layout(flow_of([[i + 1] for i in range(12)] + [[]], modules))
    assert laid.boxes == ("", "net", "h", "h.0", "h.1", "out")
    nested = layout(flow_of([[]] * 9, ("s.0.0",) * 4 + ("s.0.1",) * 4 + ("",)))
    assert nested.boxes == ("", "s.0", "s.0.0", "s.0.1")


def test_layers_that_are_linked_through_others_follow_each_other() -> None:
    """As in a backward pass whose sums of gradients are in no module."""
    modules = tuple(module for k in range(8) for module in (*[f"h.{k}"] * 4, ""))
    laid = layout(flow_of([[i + 1] for i in range(39)] + [[]], modules))
    boxes = [40 + laid.boxes.index(f"h.{k}") for k in range(8)]
    right, below = np.diff(laid.x[boxes]) > 0, np.diff(laid.y[boxes]) > 0
    assert (right | below).all()
    assert right.any()
