"""Graphs of small models, each captured once for all tests, and their operators."""

from __future__ import annotations

from functools import cache

from placewright.capturing.model import capture_source
from placewright.graph.graph import Graph, Operator
from small_zoo import small
from tests.capturing.models import unseen


@cache
def small_graph(name: str, *, training: bool = False) -> Graph:
    """The graph of `small(name)`."""
    return capture_source(small(name), training=training)


@cache
def unseen_graph(name: str, *, training: bool = False) -> Graph:
    """The graph of `unseen(name)`."""
    return capture_source(unseen(name), training=training)


def only_operator(graph: Graph, kind: str) -> Operator:
    """The operator of a kind that occurs once in the graph."""
    (found,) = (op for op in graph.operators if op.kind == kind)
    return found
