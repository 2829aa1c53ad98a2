"""Chains of calls and CPU blocks: the shortest one over given ideals, by labels."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.planners.calls.graph import CallGraph
from placewright.operators.planners.calls.labels import Labels, Machines, columns, expand, labels
from placewright.operators.planners.calls.lattice import Lattice, lattice

POOL_BYTES = 4e8
"""Room for labels; a fuller pool loses labels, and with them the proof."""
NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The best chain, if any is better than what was known.

    Attributes
    ----------
    place, call
        Shape (n,): device and call of every operator, -1 where left out.
    value_s
        ``inf`` without a chain.
    bound_s
        No chain over these ideals ends earlier.
    """

    place: IntArray
    call: IntArray
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

    `beam`: labels that go on from each ideal; fewer make it a heuristic.
    `deadline_s`: ``time.perf_counter()`` value at which what is open becomes the bound.
    """
    try:
        # The lattice alone takes seconds where ideals or operators are thousands.
        g = lattice(graph, sets, deadline_s if graph.blocks else math.inf)
    except TimeoutError:
        nowhere = np.full(graph.problem.n, -1)
        return Chain(nowhere, nowhere, math.inf, 0.0)
    machines = _machines(graph)
    pool = labels(g, machines, int(POOL_BYTES / (8 * columns(g, machines) + 32)))
    last = len(sets) - 1
    # Ideals by size: all labels of x are there before it is extended.
    for x in range(last):
        if time.perf_counter() > deadline_s:
            break
        expand(g, pool, machines, x, below_s, beam)
    else:
        x = last
    end = _ends(pool, last)
    value = float(pool.value[end, 0]) if end >= 0 else math.inf
    # What would end earlier goes on from a label that has not been extended, unless one was lost.
    bound = min(value, below_s, _least_open(pool, x, last))
    place, call = _walk_back(graph, g, pool, end)
    return Chain(place, call, value, 0.0 if pool.state[2] > 0 else bound)


def _machines(graph: CallGraph) -> Machines:
    p, called = graph.problem, graph.called
    room, host = np.floor(p.memory_bytes[called]), p.host_seconds_per_byte[called]
    table = np.column_stack([graph.accelerator_s, room, host])
    _, first, same = np.unique(table, axis=0, return_index=True, return_inverse=True)
    like = first[same.ravel()].astype(np.int64) if len(called) else called
    return Machines(graph.cpu_s, room, host, like, p.calls)


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


def _walk_back(graph: CallGraph, g: Lattice, pool: Labels, end: int) -> tuple[IntArray, IntArray]:
    """Device and call of every operator, from the last label on; the last entry: left out."""
    place, steps, at = np.full(graph.blocks + 1, -1), np.full(graph.blocks + 1, -1), end
    while at > 0:
        parent, device = int(pool.parent[at]), int(pool.device[at])
        new = np.flatnonzero(g.member[pool.ideal[at]] & ~g.member[pool.ideal[parent]])
        place[new] = graph.called[device] if device >= 0 else graph.cpus[-1 - device]
        # Column 2 + 3 d of a label: calls of accelerator d before this one.
        steps[new] = 0 if device < 0 else pool.value[parent, 2 + 3 * device]
        at = parent
    return place[graph.block], steps[graph.block]
