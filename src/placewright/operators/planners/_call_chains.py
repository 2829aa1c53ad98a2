"""Chains of calls and CPU blocks: the shortest one over given ideals, by labels."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.arrays import IntArray
from placewright.operators._star_latency import accelerators
from placewright.operators.planners._call_graph import CallGraph
from placewright.operators.planners._call_labels import Labels, expand, labels
from placewright.operators.planners._call_lattice import Lattice, lattice

POOL_BYTES = 4e8
"""Room for labels; a fuller pool loses labels, and with them the proof."""
NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The best chain, if any is better than what was known.

    Attributes
    ----------
    unit
        Shape (n,): number of the call of every operator, -1 on the CPU, -2 where left out.
    value_s
        ``inf`` without a chain.
    bound_s
        No chain over these ideals ends earlier.
    """

    unit: IntArray
    value_s: float
    bound_s: float


def best_chain(
    graph: CallGraph,
    sets: Sequence[int],
    *,
    below_s: float = math.inf,
    beam: int = NO_LIMIT,
    deadline_s: float = math.inf,
) -> Chain:
    """The shortest chain over the ideals `sets` that ends before `below_s`.

    Parameters
    ----------
    beam
        Labels that go on from each ideal; fewer make it a heuristic.
    deadline_s
        ``time.perf_counter()`` value at which what is open becomes the bound.
    """
    g = lattice(graph, sets)
    called = accelerators(graph.problem)
    room = float(graph.problem.memory_bytes[called].min(initial=math.inf))
    width = 2 + int(np.diff(g.front_offsets).max(initial=0))
    pool = labels(g, max(1_000, int(POOL_BYTES / (8 * width + 24))))
    last = len(sets) - 1
    for x in range(last):
        if time.perf_counter() > deadline_s:
            break
        expand(g, pool, x, x + 1, graph.cpu_s, room, int(called.sum()), below_s, beam)
    else:
        x = last
    end = _ends(pool, last)
    value = float(pool.value[end, 0]) if end >= 0 else math.inf
    bound = min(value, below_s, _least_open(pool, x, last))
    if pool.state[2] > 0:
        bound = 0.0
    return Chain(_units(graph, g, pool, end), value, bound)


def _ends(pool: Labels, last: int) -> int:
    """The best label of the whole graph, -1 if there is none."""
    best, at = -1, int(pool.head[last])
    while at >= 0:
        if best < 0 or pool.value[at, 0] < pool.value[best, 0]:
            best = at
        at = int(pool.following[at])
    return best


def _least_open(pool: Labels, first: int, last: int) -> float:
    """The least bound of the labels that have not gone on."""
    least = math.inf
    for head in pool.head[first:last].tolist():
        at = head
        while at >= 0:
            least = min(least, float(pool.value[at, 0]))
            at = int(pool.following[at])
    return least


def _units(graph: CallGraph, g: Lattice, pool: Labels, end: int) -> IntArray:
    """Walk back from the last label."""
    of_block = np.full(graph.blocks, -1)
    at = end
    while at > 0:
        parent = int(pool.parent[at])
        new = g.member[pool.ideal[at]] & ~g.member[pool.ideal[parent]]
        if pool.value[at, 1] > pool.value[parent, 1]:
            of_block[new] = int(pool.value[parent, 1])
        at = parent
    return np.where(graph.block >= 0, of_block[graph.block], -2)
