"""Fewer ideals: neighbours in a chain of blocks are joined where a cut is least wanted."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.planners.calls.graph import CallGraph, call_graph
from placewright.operators.planners.calls.lattice import ideals, predecessors


def coarser(
    graph: CallGraph, without: BoolArray, apart: BoolArray, most: int
) -> tuple[CallGraph, list[int]] | None:
    """Join links of chains, dearest transfers first, until there are at most `most` ideals.

    A link joins a block that has one reader to that reader, if it reads nothing else; joining
    them makes no cycle.

    Parameters
    ----------
    apart
        Shape (n,): operators whose blocks stay as they are, if that leaves few enough.

    Returns
    -------
    The graph and its ideals; ``None`` where even all links joined leave too many.
    """
    links = _links(graph)
    kept = apart_blocks(graph, apart)[links].any(axis=1)
    links = links[np.lexsort((_bytes(graph)[links[:, 0]], ~kept))]
    low, high, found = 0, len(links) + 1, None
    while low < high:
        middle = (low + high) // 2
        joined = _joined(graph, links[middle:])
        made = call_graph(graph.problem, without, joined)
        sets = ideals(predecessors(made), most)
        if sets is None:
            high = middle
        else:
            low, found = middle + 1, (made, sets)
    return found


def apart_blocks(graph: CallGraph, apart: BoolArray) -> BoolArray:
    """Shape (b,): blocks of some operator of `apart`."""
    marked = np.zeros(graph.blocks, dtype=np.bool_)
    marked[graph.block[apart & (graph.block >= 0)]] = True
    return marked


def borders(graph: CallGraph, place: IntArray, reach: int) -> BoolArray:
    """Shape (n,): operators at most `reach` uses away from where a tensor changes devices."""
    p = graph.problem
    tensor = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    maker, reader = p.tensor_producer[tensor], p.consumers
    near = np.zeros(p.n, dtype=np.bool_)
    crosses = place[maker] != place[reader]
    near[maker[crosses]] = near[reader[crosses]] = True
    for _ in range(reach):
        touched = near[maker] | near[reader]
        near[maker[touched]] = near[reader[touched]] = True
    return near


def _links(graph: CallGraph) -> IntArray:
    """Shape (e, 2): blocks of which the first has no other reader, the second no other input."""
    p = graph.problem
    tensor = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    maker, reader = graph.block[p.tensor_producer[tensor]], graph.block[p.consumers]
    between = (maker >= 0) & (reader >= 0) & (maker != reader)
    pairs = np.unique(np.stack([maker[between], reader[between]], axis=1), axis=0)
    readers = np.bincount(pairs[:, 0], minlength=graph.blocks)
    inputs = np.bincount(pairs[:, 1], minlength=graph.blocks)
    links: IntArray = pairs[(readers[pairs[:, 0]] == 1) & (inputs[pairs[:, 1]] == 1)]
    return links


def _bytes(graph: CallGraph) -> FloatArray:
    """Shape (b,): bytes of the tensors that each block makes."""
    p = graph.problem
    block = graph.block[p.tensor_producer]
    held = np.bincount(block[block >= 0], p.tensor_bytes[block >= 0], graph.blocks)
    return held.astype(np.float64)


def _joined(graph: CallGraph, links: IntArray) -> IntArray:
    """Shape (n,): a number for each operator, equal for those that are joined."""
    head = np.arange(graph.blocks)
    after = dict(links.tolist())
    for b in range(graph.blocks - 1, -1, -1):  # blocks are numbered topologically
        if b in after:
            head[b] = head[after[b]]
    label = head[np.maximum(graph.block, 0)]
    left_out = graph.blocks + np.arange(len(label))
    return np.where(graph.block >= 0, label, left_out)
