"""The cheapest cut between a source and a sink."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from placewright.errors import MissingDependencyError
from placewright.numerics.arrays import BoolArray

SOURCE, SINK = 0, 1
_LARGEST = 2.0**50
"""All finite capacities together, as integers: their sums stay exact in 64 bits."""


@dataclass(slots=True)
class Network:
    """Nodes and arcs, built up one by one; nodes 0 and 1 are source and sink.

    An arc costs its capacity where its tail is on the source's side and its head is not;
    ``inf`` forbids that.
    """

    nodes: int = 2
    tail: list[int] = field(default_factory=list)
    head: list[int] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)

    def node(self) -> int:
        """A new node."""
        self.nodes += 1
        return self.nodes - 1

    def arc(self, tail: int, head: int, capacity: float) -> None:
        """A new arc; one without capacity is left out."""
        if capacity > 0:
            self.tail.append(tail)
            self.head.append(head)
            self.capacity.append(capacity)


def min_cut(network: Network) -> tuple[BoolArray, float]:
    """Which nodes are on the source's side of the cheapest cut, and how far it can be from it.

    Capacities are rounded to integers; the cut is the cheapest for these, so its cost is at most
    ``error`` (one unit of the rounding per arc) above the cheapest for the true ones.

    Returns `side`: shape (nodes,); nothing is on the source's side where every cut is forbidden.
    `error`: In the unit of the capacities; ``inf`` where every cut is forbidden.
    Raises `MissingDependencyError`: OR-tools is not installed.
    """
    try:
        from ortools.graph.python import max_flow
    except ModuleNotFoundError:
        raise MissingDependencyError("ortools", extra="exact", purpose="a minimum cut") from None
    capacity = np.array(network.capacity, dtype=np.float64)
    open_ = np.isfinite(capacity)
    total = float(capacity[open_].sum())
    scale = _LARGEST / total if total > 0 else 1.0
    units = np.rint(np.where(open_, capacity, 0.0) * scale).astype(np.int64)
    # Dearer than all finite arcs together: a cut that costs less holds no forbidden arc.
    forbidden = int(units.sum()) + 1
    units[~open_] = forbidden
    flow = max_flow.SimpleMaxFlow()
    flow.add_arc_with_capacity(SOURCE, SINK, 0)  # both exist, whatever follows
    flow.add_arcs_with_capacity(
        np.array(network.tail, dtype=np.int32), np.array(network.head, dtype=np.int32), units
    )
    status = flow.solve(SOURCE, SINK)
    side = np.zeros(network.nodes, dtype=np.bool_)
    if status != flow.OPTIMAL or flow.optimal_flow() >= forbidden:
        return side, math.inf
    side[flow.get_source_side_min_cut()] = True
    return side, len(units) / scale
