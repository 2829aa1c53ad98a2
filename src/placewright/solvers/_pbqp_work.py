"""The work list of a PBQP under reduction, compiled: nodes by degree, edges in two lists.

A work list holds every live node in the bucket of its degree. Edges hang in two doubly linked
lists, one per end, so that an edge is inserted and deleted in constant time. Half-edge
``2 * e + side`` is edge ``e`` seen from ``ends[e, side]``. A matrix has a row per option of
``ends[e, 0]``; seen from the other side it is read with its strides exchanged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached, njit_internal, njit_no_refcount

RECORDS, POOL_TOP, FIRED, HIGHEST = 0, 1, 2, 3
"""Slots of `WorkList.counts`; FIRED counts heuristic decisions (RN)."""


@by_reference
class Arrays(NamedTuple):
    """A PBQP as flat arrays: options of node i are ``cost[start[i]:start[i + 1]]``.

    Edge e joins ``ends[e, 0]`` and ``ends[e, 1]``; its matrix begins at ``pool[matrix[e]]``, a row
    per option of ``ends[e, 0]``.
    """

    start: IntArray
    cost: FloatArray
    ends: IntArray
    matrix: IntArray
    pool: FloatArray


@by_reference
class WorkList(NamedTuple):
    """A PBQP under reduction. ``degree`` is -1 for nodes that are gone.

    Half-edges at a node: ``head[node]``, then `after` and `before` of each, -1 at the ends of the
    list. Nodes of degree d: ``bucket[d]``, then `bucket_after` and `bucket_before`. A line of
    `record` is (node, and for each of the at most two neighbours that it was folded into: neighbour
    or -1, matrix offset, stride of the node's option, stride of the neighbour's), in the order in
    which nodes went. `minima` is scratch of one normalisation: by side, what was taken off rows.
    """

    start: IntArray
    cost: FloatArray
    ends: IntArray
    matrix: IntArray
    pool: FloatArray
    head: IntArray
    after: IntArray
    before: IntArray
    degree: IntArray
    bucket: IntArray
    bucket_after: IntArray
    bucket_before: IntArray
    record: IntArray
    counts: IntArray
    minima: FloatArray


def prepare(arrays: Arrays, room: int) -> WorkList:
    """Copy `arrays` into a work space with `room` more matrix entries; no edge normalised."""
    n, e = len(arrays.start) - 1, len(arrays.ends)
    degree = np.bincount(arrays.ends.ravel(), minlength=n)
    top = int(degree.max(initial=0))
    w = WorkList(
        arrays.start,
        arrays.cost.copy(),
        arrays.ends.copy(),
        arrays.matrix.copy(),
        np.concatenate([arrays.pool, np.empty(room)]),
        np.full(n, -1),
        np.full(2 * e, -1),
        np.full(2 * e, -1),
        degree,
        np.full(top + 1, -1),
        np.full(n, -1),
        np.full(n, -1),
        np.full((n, 9), -1),
        np.array([0, len(arrays.pool), 0, top]),
        np.zeros((2, int(np.diff(arrays.start).max(initial=0)))),
    )
    _fill_lists(w)
    return w


@njit_no_refcount
def _fill_lists(w: WorkList) -> None:
    # Lists grow at their heads: put in backwards, edges and nodes stand in ascending order.
    for k in range(len(w.ends) - 1, -1, -1):
        link(w, 2 * k)
        link(w, 2 * k + 1)
    for i in range(len(w.head) - 1, -1, -1):
        enqueue(w, i)


@njit_internal
def cheapest(w: WorkList, node: int) -> float:
    """Cost of the cheapest option of a node."""
    least = np.inf
    for a in range(w.start[node], w.start[node + 1]):
        least = min(least, w.cost[a])
    return least


@njit_no_refcount
def evaluate(arrays: Arrays, choice: IntArray) -> float:
    """Sum of the chosen node and edge costs."""
    total = 0.0
    for i in range(len(arrays.start) - 1):
        total += arrays.cost[arrays.start[i] + choice[i]]
    for k in range(len(arrays.ends)):
        u, v = arrays.ends[k, 0], arrays.ends[k, 1]
        width = arrays.start[v + 1] - arrays.start[v]
        total += arrays.pool[arrays.matrix[k] + choice[u] * width + choice[v]]
    return total


def extract(w: WorkList, wanted: IntArray) -> tuple[Arrays, IntArray]:
    """The live nodes with ``wanted[node] == 1`` as a problem of its own, and their numbers."""
    start, cost, ends, matrix, pool, nodes = _extract(w, wanted)
    return Arrays(start, cost, ends, matrix, pool), nodes


@njit_cached
def _extract(
    w: WorkList, wanted: IntArray
) -> tuple[IntArray, FloatArray, IntArray, IntArray, FloatArray, IntArray]:
    n = len(w.head)
    number = np.full(n, -1, np.int64)
    count = total = 0
    for i in range(n):
        if w.degree[i] >= 0 and wanted[i] == 1:
            number[i] = count
            count += 1
            total += options(w, i)
    nodes, start, cost = np.empty(count, np.int64), np.zeros(count + 1, np.int64), np.empty(total)
    for i in range(n):
        if number[i] >= 0:
            k, size = number[i], options(w, i)
            nodes[k], start[k + 1] = i, start[k] + size
            # No slices: for one Numba compiles three seconds of its own code.
            for a in range(size):
                cost[start[k] + a] = w.cost[w.start[i] + a]
    edges = entries = 0
    for k in range(len(w.ends)):
        if alive(w, k) and number[w.ends[k, 0]] >= 0:
            edges += 1
            entries += options(w, w.ends[k, 0]) * options(w, w.ends[k, 1])
    ends, matrix, pool = (
        np.empty((edges, 2), np.int64),
        np.empty(edges, np.int64),
        np.empty(entries),
    )
    at = edge = 0
    for k in range(len(w.ends)):
        if alive(w, k) and number[w.ends[k, 0]] >= 0:
            u, v = w.ends[k, 0], w.ends[k, 1]
            size = options(w, u) * options(w, v)
            ends[edge, 0], ends[edge, 1], matrix[edge] = number[u], number[v], at
            for a in range(size):
                pool[at + a] = w.pool[w.matrix[k] + a]
            at += size
            edge += 1
    return start, cost, ends, matrix, pool, nodes


@njit_cached
def components(w: WorkList) -> IntArray:
    """Component of every live node, numbered by its first node; -1 for retired nodes."""
    label = np.full(len(w.head), -1, np.int64)
    stack = np.empty(len(w.head), np.int64)
    found = 0
    for root in range(len(w.head)):
        if w.degree[root] < 0 or label[root] >= 0:
            continue
        label[root], stack[0], size = found, root, 1
        while size:
            size -= 1
            h = w.head[stack[size]]
            while h >= 0:
                other = w.ends[h // 2, 1 - h % 2]
                if label[other] < 0:
                    label[other], stack[size] = found, other
                    size += 1
                h = w.after[h]
        found += 1
    return label


@njit_no_refcount
def branching_node(w: WorkList) -> int:
    """The live node of highest degree, the first of several."""
    best = 0
    for i in range(1, len(w.degree)):
        if w.degree[i] > w.degree[best]:
            best = i
    return best


@njit_internal
def options(w: WorkList, node: int) -> int:
    return int(w.start[node + 1] - w.start[node])


@njit_internal
def alive(w: WorkList, edge: int) -> bool:
    """Whether edge is in the lists: it is the head or has a predecessor."""
    # A head has no predecessor, nor has what is in no list: only the node's `head` tells them
    # apart.
    h = 2 * edge
    return bool(w.before[h] >= 0 or w.head[w.ends[edge, 0]] == h)


@njit_internal
def view(w: WorkList, h: int) -> tuple[int, int, int, int]:
    """Matrix offset, stride of own option, stride of the other's option, other node."""
    edge, side = h // 2, h % 2
    other = w.ends[edge, 1 - side]
    if side == 0:
        return w.matrix[edge], options(w, other), 1, other
    return w.matrix[edge], 1, options(w, w.ends[edge, side]), other


@njit_internal
def link(w: WorkList, h: int) -> None:
    node = w.ends[h // 2, h % 2]
    first = w.head[node]
    w.before[h], w.after[h], w.head[node] = -1, first, h
    if first >= 0:
        w.before[first] = h


@njit_internal
def unlink(w: WorkList, h: int) -> None:
    node = w.ends[h // 2, h % 2]
    if w.before[h] >= 0:
        w.after[w.before[h]] = w.after[h]
    else:
        w.head[node] = w.after[h]
    if w.after[h] >= 0:
        w.before[w.after[h]] = w.before[h]
    w.before[h] = w.after[h] = -1


@njit_internal
def enqueue(w: WorkList, node: int) -> None:
    d = w.degree[node]
    first = w.bucket[d]
    w.bucket_before[node], w.bucket_after[node], w.bucket[d] = -1, first, node
    if first >= 0:
        w.bucket_before[first] = node


@njit_internal
def dequeue(w: WorkList, node: int) -> None:
    # Before `degree` changes: it says which bucket the node is in.
    left, right = w.bucket_before[node], w.bucket_after[node]
    if left >= 0:
        w.bucket_after[left] = right
    else:
        w.bucket[w.degree[node]] = right
    if right >= 0:
        w.bucket_before[right] = left


@njit_internal
def delete(w: WorkList, edge: int) -> None:
    for side in range(2):
        node = w.ends[edge, side]
        unlink(w, 2 * edge + side)
        dequeue(w, node)
        w.degree[node] -= 1
        enqueue(w, node)


@njit_internal
def insert(w: WorkList, edge: int, u: int, v: int, matrix: int) -> None:
    """Give the slot of a deleted edge to a new one."""
    w.ends[edge, 0], w.ends[edge, 1], w.matrix[edge] = u, v, matrix
    for side in range(2):
        node = w.ends[edge, side]
        link(w, 2 * edge + side)
        dequeue(w, node)
        w.degree[node] += 1
        enqueue(w, node)


@njit_internal
def retire(w: WorkList, node: int) -> None:
    """Take `node` off the work list; its record says no neighbour until one is noted."""
    dequeue(w, node)
    w.degree[node] = -1
    w.record[w.counts[RECORDS], 0] = node
    w.counts[RECORDS] += 1


@njit_internal
def edge_between(w: WorkList, u: int, v: int) -> int:
    """The half-edge at u that leads to v, -1 if there is none."""
    # Walk the shorter of the two lists.
    a, b = (u, v) if w.degree[u] <= w.degree[v] else (v, u)
    h = w.head[a]
    while h >= 0:
        if w.ends[h // 2, 1 - h % 2] == b:
            return int(h if a == u else h ^ 1)
        h = w.after[h]
    return -1


@njit_internal
def highest(w: WorkList) -> int:
    """A live node of highest degree, -1 if all are gone. Degrees never rise above the first."""
    while w.counts[HIGHEST] >= 0:
        if w.bucket[w.counts[HIGHEST]] >= 0:
            return int(w.bucket[w.counts[HIGHEST]])
        w.counts[HIGHEST] -= 1
    return -1
