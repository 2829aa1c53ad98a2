"""The least time from an operator to the end, by how many accelerators' memory is left.

A path takes at least the sum of its operators' times where each is fastest. With little memory
left, not all of them can be there: those that run faster on an accelerator than on a CPU, and
that have bytes, must share the memory. Choosing which is a knapsack; its relaxation to fractions
(most time saved per byte first) is a bound. With no memory to be had anywhere, what has bytes
runs on a CPU.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.planners.calls.graph import CallGraph


def tails(graph: CallGraph) -> FloatArray:
    """Shape (n, k + 1): entry [i, r] with the memory of r accelerators (the largest) left."""
    p, t = graph.problem, graph.problem.topology
    cost = np.where(p.allowed(), p.compute_s, np.inf)
    fast, slow = cost.min(axis=1), graph.cpu_s.min(axis=0, initial=np.inf)
    room = np.floor(p.memory_bytes[graph.called]).max(initial=0.0) * np.arange(
        len(graph.called) + 1
    )
    follows = _followers(graph, fast)
    result = np.zeros((p.n, len(room)))
    paths: dict[int, IntArray] = {}
    for i in t.order[::-1].tolist():
        if graph.block[i] < 0:
            continue
        rest = paths[follows[i]] if follows[i] >= 0 else np.zeros(0, dtype=np.int64)
        paths[i] = np.append(rest, i)
        result[i] = _knapsack(graph, paths[i], fast, slow, room)
    return np.maximum(result, 0.0)


def _followers(graph: CallGraph, fast: FloatArray) -> IntArray:
    """Shape (n,): the next operator on the longest path, -1 at the end."""
    p, t = graph.problem, graph.problem.topology
    tail, follows = np.zeros(p.n), np.full(p.n, -1)
    for i in t.order[::-1].tolist():
        for k in t.out_tensors[t.out_offsets[i] : t.out_offsets[i + 1]].tolist():
            for j in p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]].tolist():
                if graph.block[j] >= 0 and (follows[i] < 0 or tail[j] > tail[follows[i]]):
                    follows[i] = j
        tail[i] = fast[i] + (tail[follows[i]] if follows[i] >= 0 else 0.0)
    return follows


def _knapsack(
    graph: CallGraph, path: IntArray, fast: FloatArray, slow: FloatArray, room: FloatArray
) -> FloatArray:
    """Shape (len(room),): the least time of a path."""
    block, first = np.unique(graph.block[path], return_inverse=True)
    saved = np.bincount(first, slow[path] - fast[path], len(block))
    need = graph.resident_bytes[block]
    tight = np.isfinite(saved) & (saved > 0) & (need > 0)
    by = np.argsort(-saved[tight] / need[tight], kind="stable")
    held = np.append(0.0, np.cumsum(need[tight][by]))
    gained = np.append(0.0, np.cumsum(saved[tight][by]))
    least: FloatArray = fast[path].sum() + gained[-1] - np.interp(room, held, gained)
    return least * (1 - 1e-12)
