"""Down-sets of a contracted forward graph, and the best chain of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.planners.pipelines.contiguous.kernel import (
    Lattice,
    fill,
    loads_of,
    states_of,
)
from placewright.operators.planners.pipelines.contraction import Contraction

MOST_CELLS = 40_000_000
"""States times ideals of a table: 24 bytes each."""
_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Stages of the nodes, shape (N,), the kind of each stage, the largest load."""

    value_s: float
    stage: IntArray
    kinds: tuple[int, ...]


class OutOfTimeError(Exception):
    """The deadline came before the table was full."""


def best_chain(
    c: Contraction, lattice: Lattice, limit: float, deadline_s: float = float("inf")
) -> Chain | None:
    """The least max load of any chain in the lattice, ``None`` if none is within `limit`.

    Raises `OutOfTimeError` (at the deadline).
    """
    states, loads = states_of(c.counts), loads_of(c)
    ideals = len(lattice.offsets) - 1
    best = np.full((len(states.digits), ideals), np.inf)
    # State s means at most these devices: with nothing to hold, none of them is loaded.
    best[:, 0] = 0.0
    came_from = np.zeros(best.shape, dtype=np.int64)
    came_by = np.zeros(best.shape, dtype=np.int64)
    seen = np.full(ideals, -1)
    for first in range(1, ideals, _BATCH):
        last = min(first + _BATCH, ideals)
        fill(lattice, loads, states, limit, first, last, best, came_from, came_by, seen)
        if time.perf_counter() > deadline_s:
            raise OutOfTimeError
    state = int(best[:, -1].argmin())
    if not np.isfinite(best[state, -1]):
        return None
    value, at = float(best[state, -1]), ideals - 1
    from_end, kinds = np.full(c.nodes, -1), list[int]()
    while at > 0:
        below, kind = int(came_from[state, at]), int(came_by[state, at])
        from_end[_between(lattice, at, below)] = len(kinds)
        kinds.append(kind)
        state, at = state - int(loads.taken[kind]), below
    return Chain(value, len(kinds) - 1 - from_end, tuple(kinds[::-1]))


def lattice_of(c: Contraction, most: int, deadline_s: float = float("inf")) -> Lattice | None:
    """All ideals of the forward graph; ``None`` where there are more than `most`, or no time."""
    before = [0] * c.nodes
    for a, b in c.edges.tolist():
        # Ideals are bit masks of nodes; Python's whole numbers have as many bits as it takes.
        before[b] |= 1 << a
    position, layer = {0: 0}, [0]
    offsets, below, removed = [0, 0], list[int](), list[int]()
    for _ in range(c.nodes):
        links: dict[int, list[tuple[int, int]]] = {}
        for ideal in layer:
            for v in _addable(ideal, before, c.nodes):
                links.setdefault(ideal | 1 << v, []).append((position[ideal], v))
            if len(position) + len(links) > most or time.perf_counter() > deadline_s:
                return None
        # Layer by layer: ideals with one node more, each with all ways down from it.
        layer = list(links)
        for ideal, parts in links.items():
            position[ideal] = len(position)
            below += [part[0] for part in parts]
            removed += [part[1] for part in parts]
            offsets.append(len(below))
    return Lattice(*(np.array(x, dtype=np.int64) for x in (offsets, below, removed)))


def _addable(ideal: int, before: list[int], count: int) -> Iterator[int]:
    """Nodes outside whose producers are all inside."""
    left = ~ideal & ((1 << count) - 1)
    while left:
        low = left & -left
        v = low.bit_length() - 1
        if before[v] & ~ideal == 0:
            yield v
        left ^= low


def _between(lattice: Lattice, top: int, bottom: int) -> IntArray:
    """The nodes of `top` that are not in `bottom`."""
    return np.setdiff1d(_nodes(lattice, top), _nodes(lattice, bottom))


def _nodes(lattice: Lattice, ideal: int) -> IntArray:
    found = []
    while ideal > 0:
        found.append(int(lattice.removed[lattice.offsets[ideal]]))
        ideal = int(lattice.below[lattice.offsets[ideal]])
    return np.array(found, dtype=np.int64)
