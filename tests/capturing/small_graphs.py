"""Graphs of the small zoo, each captured once for all tests."""

from __future__ import annotations

from functools import cache

from placewright.capturing.model import capture_source
from placewright.graph.graph import Graph
from placewright.testing.small_zoo import small


@cache
def small_graph(name: str, *, training: bool = False) -> Graph:
    """The graph of `small(name)`."""
    return capture_source(small(name), training=training)
