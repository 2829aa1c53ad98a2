"""Reductions of a PBQP, compiled: normalisation, R0, RI, RII, dominance, RN, back-propagation.

A work list holds every live node in the bucket of its degree. Edges hang in two doubly linked
lists, one per end, so that an edge is inserted and deleted in constant time. Half-edge
``2 * e + side`` is edge ``e`` seen from ``ends[e, side]``. A matrix has a row per option of
``ends[e, 0]``; seen from the other side it is read with its strides exchanged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.compiled import compiled, lean

NOISE = 1e-13
"""What is left of an edge entry is noise if it is below this share of what was taken off."""

DOMINANCE_OPTIONS = 32
"""Dominance compares pairs of options; nodes with more options than this are left out."""

RECORDS, POOL_TOP, FIRED, HIGHEST = 0, 1, 2, 3
"""Slots of `Work.counts`; FIRED counts heuristic decisions (RN)."""

DONE, POOL_FULL = 0, 1


class Arrays(NamedTuple):
    """A PBQP as flat arrays: options of node i are ``cost[start[i]:start[i + 1]]``."""

    start: IntArray
    cost: FloatArray
    ends: IntArray
    matrix: IntArray
    pool: FloatArray


class Work(NamedTuple):
    """A PBQP under reduction. ``degree`` is -1 for nodes that are gone."""

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


@compiled
def prepare(arrays: Arrays, room: int) -> Work:
    """Copy `arrays` into a work space with `room` more matrix entries; no edge normalised."""
    n, e = len(arrays.start) - 1, len(arrays.ends)
    pool = np.empty(len(arrays.pool) + room)
    pool[: len(arrays.pool)] = arrays.pool
    degree = np.zeros(n, np.int64)
    for k in range(e):
        degree[arrays.ends[k, 0]] += 1
        degree[arrays.ends[k, 1]] += 1
    top = degree.max() if n else 0
    widest = (arrays.start[1:] - arrays.start[:-1]).max() if n else 0
    w = Work(
        arrays.start,
        arrays.cost.copy(),
        arrays.ends.copy(),
        arrays.matrix.copy(),
        pool,
        np.full(n, -1, np.int64),
        np.full(2 * e, -1, np.int64),
        np.full(2 * e, -1, np.int64),
        degree,
        np.full(top + 1, -1, np.int64),
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.full((n, 9), -1, np.int64),
        np.array([0, len(arrays.pool), 0, top]),
        np.zeros((2, widest)),
    )
    for k in range(e - 1, -1, -1):
        _link(w, 2 * k)
        _link(w, 2 * k + 1)
    for i in range(n - 1, -1, -1):
        _enqueue(w, i)
    return w


@lean
def normalise_all(w: Work) -> None:
    """Normalise every edge that is still there."""
    for k in range(len(w.ends)):
        if _alive(w, k):
            _normalise(w, k)


@lean
def run(w: Work, greedy: bool) -> int:
    """Reduce until nothing applies; with `greedy` RN decides where nothing else does.

    Returns POOL_FULL where RII needs room for a matrix: give `w` a larger pool, call again.
    """
    while True:
        if w.bucket[0] >= 0:
            _retire(w, w.bucket[0])
        elif len(w.bucket) > 1 and w.bucket[1] >= 0:
            _reduce_one(w, w.bucket[1])
        elif len(w.bucket) > 2 and w.bucket[2] >= 0:
            if w.counts[POOL_TOP] + room_needed(w, w.bucket[2]) > len(w.pool):
                return POOL_FULL
            _reduce_two(w, w.bucket[2])
        elif not greedy:
            if not _dominate_all(w):
                return DONE
        else:
            node = _highest(w)
            if node < 0:
                return DONE
            w.counts[FIRED] += 1
            fix(w, node, _local_best(w, node))


@lean
def fix(w: Work, node: int, option: int) -> None:
    """Decide `node`: its edges become costs of its neighbours."""
    while w.head[node] >= 0:
        h = w.head[node]
        m, si, sj, other = _view(w, h)
        for j in range(_options(w, other)):
            w.cost[w.start[other] + j] += w.pool[m + option * si + j * sj]
        _delete(w, h // 2)
    for i in range(_options(w, node)):
        if i != option:
            w.cost[w.start[node] + i] = np.inf
    _retire(w, node)


@lean
def back_propagate(w: Work, choice: IntArray) -> None:
    """Choose for the retired nodes, last first; `choice` already holds the live nodes'."""
    for r in range(w.counts[RECORDS] - 1, -1, -1):
        node = w.record[r, 0]
        best, best_cost = 0, np.inf
        for i in range(_options(w, node)):
            c = w.cost[w.start[node] + i]
            for a in (1, 5):
                other = w.record[r, a]
                if other >= 0:
                    at = w.record[r, a + 1] + i * w.record[r, a + 2]
                    c += w.pool[at + choice[other] * w.record[r, a + 3]]
            if c < best_cost:
                best, best_cost = i, c
        choice[node] = best


@lean
def settled_cost(w: Work) -> float:
    """Sum of the cheapest options of the nodes that left without an edge."""
    total = 0.0
    for r in range(w.counts[RECORDS]):
        if w.record[r, 1] < 0:
            total += cheapest(w, w.record[r, 0])
    return total


@lean
def cheapest(w: Work, node: int) -> float:
    """Cost of the cheapest option of a node."""
    least = np.inf
    for a in range(w.start[node], w.start[node + 1]):
        least = min(least, w.cost[a])
    return least


@lean
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


@compiled
def extract(w: Work, wanted: IntArray) -> tuple[Arrays, IntArray]:
    """The live nodes with ``wanted[node] == 1`` as a problem of its own, and their numbers."""
    n = len(w.head)
    number = np.full(n, -1, np.int64)
    count = options = 0
    for i in range(n):
        if w.degree[i] >= 0 and wanted[i] == 1:
            number[i] = count
            count += 1
            options += _options(w, i)
    nodes, start, cost = np.empty(count, np.int64), np.zeros(count + 1, np.int64), np.empty(options)
    for i in range(n):
        if number[i] >= 0:
            k, size = number[i], _options(w, i)
            nodes[k], start[k + 1] = i, start[k] + size
            cost[start[k] : start[k + 1]] = w.cost[w.start[i] : w.start[i + 1]]
    edges = entries = 0
    for k in range(len(w.ends)):
        if _alive(w, k) and number[w.ends[k, 0]] >= 0:
            edges += 1
            entries += _options(w, w.ends[k, 0]) * _options(w, w.ends[k, 1])
    ends, matrix, pool = (
        np.empty((edges, 2), np.int64),
        np.empty(edges, np.int64),
        np.empty(entries),
    )
    at = edge = 0
    for k in range(len(w.ends)):
        if _alive(w, k) and number[w.ends[k, 0]] >= 0:
            u, v = w.ends[k, 0], w.ends[k, 1]
            size = _options(w, u) * _options(w, v)
            ends[edge, 0], ends[edge, 1], matrix[edge] = number[u], number[v], at
            pool[at : at + size] = w.pool[w.matrix[k] : w.matrix[k] + size]
            at += size
            edge += 1
    return Arrays(start, cost, ends, matrix, pool), nodes


@compiled
def components(w: Work) -> IntArray:
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


@lean
def room_needed(w: Work, node: int) -> int:
    """Matrix entries that RII on `node` may add."""
    h = w.head[node]
    u, v = w.ends[h // 2, 1 - h % 2], w.ends[w.after[h] // 2, 1 - w.after[h] % 2]
    return _options(w, u) * _options(w, v)


@lean
def branching_node(w: Work) -> int:
    """The live node of highest degree, the first of several."""
    best = 0
    for i in range(1, len(w.degree)):
        if w.degree[i] > w.degree[best]:
            best = i
    return best


@lean
def _options(w: Work, node: int) -> int:
    return int(w.start[node + 1] - w.start[node])


@lean
def _alive(w: Work, edge: int) -> bool:
    """Whether edge is in the lists: it is the head or has a predecessor."""
    h = 2 * edge
    return bool(w.before[h] >= 0 or w.head[w.ends[edge, 0]] == h)


@lean
def _view(w: Work, h: int) -> tuple[int, int, int, int]:
    """Matrix offset, stride of own option, stride of the other's option, other node."""
    edge, side = h // 2, h % 2
    other = w.ends[edge, 1 - side]
    if side == 0:
        return w.matrix[edge], _options(w, other), 1, other
    return w.matrix[edge], 1, _options(w, w.ends[edge, side]), other


@lean
def _link(w: Work, h: int) -> None:
    node = w.ends[h // 2, h % 2]
    first = w.head[node]
    w.before[h], w.after[h], w.head[node] = -1, first, h
    if first >= 0:
        w.before[first] = h


@lean
def _unlink(w: Work, h: int) -> None:
    node = w.ends[h // 2, h % 2]
    if w.before[h] >= 0:
        w.after[w.before[h]] = w.after[h]
    else:
        w.head[node] = w.after[h]
    if w.after[h] >= 0:
        w.before[w.after[h]] = w.before[h]
    w.before[h] = w.after[h] = -1


@lean
def _enqueue(w: Work, node: int) -> None:
    d = w.degree[node]
    first = w.bucket[d]
    w.bucket_before[node], w.bucket_after[node], w.bucket[d] = -1, first, node
    if first >= 0:
        w.bucket_before[first] = node


@lean
def _dequeue(w: Work, node: int) -> None:
    left, right = w.bucket_before[node], w.bucket_after[node]
    if left >= 0:
        w.bucket_after[left] = right
    else:
        w.bucket[w.degree[node]] = right
    if right >= 0:
        w.bucket_before[right] = left


@lean
def _delete(w: Work, edge: int) -> None:
    for side in range(2):
        node = w.ends[edge, side]
        _unlink(w, 2 * edge + side)
        _dequeue(w, node)
        w.degree[node] -= 1
        _enqueue(w, node)


@lean
def _insert(w: Work, edge: int, u: int, v: int, matrix: int) -> None:
    """Give the slot of a deleted edge to a new one."""
    w.ends[edge, 0], w.ends[edge, 1], w.matrix[edge] = u, v, matrix
    for side in range(2):
        node = w.ends[edge, side]
        _link(w, 2 * edge + side)
        _dequeue(w, node)
        w.degree[node] += 1
        _enqueue(w, node)


@lean
def _retire(w: Work, node: int) -> None:
    """Take `node` off the work list; its record says no neighbour until one is noted."""
    _dequeue(w, node)
    w.degree[node] = -1
    w.record[w.counts[RECORDS], 0] = node
    w.counts[RECORDS] += 1


@lean
def _note(w: Work, slot: int, h: int) -> None:
    """Remember in the next record how its node was tied to its neighbour."""
    m, si, sj, other = _view(w, h)
    r, a = w.counts[RECORDS], 1 + 4 * slot
    w.record[r, a], w.record[r, a + 1] = other, m
    w.record[r, a + 2], w.record[r, a + 3] = si, sj


@lean
def _reduce_one(w: Work, node: int) -> None:
    """RI: fold `node` into its only neighbour."""
    h = w.head[node]
    m, si, sj, other = _view(w, h)
    for j in range(_options(w, other)):
        least = np.inf
        for i in range(_options(w, node)):
            c = w.cost[w.start[node] + i] + w.pool[m + i * si + j * sj]
            least = min(least, c)
        w.cost[w.start[other] + j] += least
    _note(w, 0, h)
    _delete(w, h // 2)
    _retire(w, node)


@lean
def _reduce_two(w: Work, node: int) -> None:
    """RII: fold `node` into the edge between its two neighbours."""
    h, g = w.head[node], w.after[w.head[node]]
    m, si, sj, u = _view(w, h)
    p, ti, tj, v = _view(w, g)
    target = _edge_between(w, u, v)
    made = w.counts[POOL_TOP]
    to, su, sv = made, _options(w, v), 1
    if target >= 0:
        to, su, sv, _ = _view(w, target)
    for j in range(_options(w, u)):
        for k in range(_options(w, v)):
            least = np.inf
            for i in range(_options(w, node)):
                c = w.pool[m + i * si + j * sj] + w.pool[p + i * ti + k * tj]
                least = min(least, w.cost[w.start[node] + i] + c)
            if target >= 0:
                least += w.pool[to + j * su + k * sv]
            w.pool[to + j * su + k * sv] = least
    _note(w, 0, h)
    _note(w, 1, g)
    _delete(w, h // 2)
    _delete(w, g // 2)
    _retire(w, node)
    edge = target // 2
    if target < 0:
        edge = g // 2
        w.counts[POOL_TOP] += _options(w, u) * _options(w, v)
        _insert(w, edge, u, v, made)
    _normalise(w, edge)


@lean
def _edge_between(w: Work, u: int, v: int) -> int:
    """The half-edge at u that leads to v, -1 if there is none."""
    a, b = (u, v) if w.degree[u] <= w.degree[v] else (v, u)
    h = w.head[a]
    while h >= 0:
        if w.ends[h // 2, 1 - h % 2] == b:
            return int(h if a == u else h ^ 1)
        h = w.after[h]
    return -1


@lean
def _normalise(w: Work, edge: int) -> None:
    """Move row and column minima into the node costs; delete the edge if nothing is left.

    What remains of an entry is rounding noise if it is tiny beside what was taken off it.
    """
    m, si, sj, v = _view(w, 2 * edge)
    u = w.ends[edge, 0]
    _pull(w, 2 * edge)
    _pull(w, 2 * edge + 1)
    left = False
    for i in range(_options(w, u)):
        for j in range(_options(w, v)):
            at = m + i * si + j * sj
            allowed = w.cost[w.start[u] + i] < np.inf and w.cost[w.start[v] + j] < np.inf
            if not allowed or w.pool[at] <= NOISE * (abs(w.minima[0, i]) + abs(w.minima[1, j])):
                w.pool[at] = 0.0
            left = left or w.pool[at] > 0
    if not left:
        _delete(w, edge)


@lean
def _pull(w: Work, h: int) -> None:
    """Move the minima of one side, over allowed options of the other, into its node."""
    node = w.ends[h // 2, h % 2]
    m, si, sj, other = _view(w, h)
    for i in range(_options(w, node)):
        least = np.inf
        w.minima[h % 2, i] = 0.0
        if w.cost[w.start[node] + i] == np.inf:
            continue
        for j in range(_options(w, other)):
            if w.cost[w.start[other] + j] < np.inf:
                least = min(least, w.pool[m + i * si + j * sj])
        w.cost[w.start[node] + i] += least
        if least < np.inf:
            w.minima[h % 2, i] = least
            for j in range(_options(w, other)):
                w.pool[m + i * si + j * sj] -= least


@lean
def _highest(w: Work) -> int:
    """A live node of highest degree, -1 if all are gone. Degrees never rise above the first."""
    while w.counts[HIGHEST] >= 0:
        if w.bucket[w.counts[HIGHEST]] >= 0:
            return int(w.bucket[w.counts[HIGHEST]])
        w.counts[HIGHEST] -= 1
    return -1


@lean
def _local_best(w: Work, node: int) -> int:
    """RN: the option that is cheapest when every neighbour follows it alone."""
    best, best_cost = 0, np.inf
    for i in range(_options(w, node)):
        total = w.cost[w.start[node] + i]
        h = w.head[node]
        while h >= 0 and total < np.inf:
            m, si, sj, other = _view(w, h)
            least = np.inf
            for j in range(_options(w, other)):
                least = min(least, w.pool[m + i * si + j * sj] + w.cost[w.start[other] + j])
            total += least
            h = w.after[h]
        if total < best_cost:
            best, best_cost = i, total
    return best


@lean
def _dominate_all(w: Work) -> bool:
    """Forbid dominated options everywhere; whether that made a node ready for RI or RII."""
    changed = False
    for node in range(len(w.head)):
        if w.degree[node] > 2 and _options(w, node) <= DOMINANCE_OPTIONS and _dominate(w, node):
            changed = True
            h = w.head[node]
            while h >= 0:
                following = w.after[h]
                _normalise(w, h // 2)
                h = following
    return changed


@lean
def _dominate(w: Work, node: int) -> bool:
    """Forbid options that another one beats whatever the neighbours do."""
    changed = False
    at = w.start[node]
    for i in range(_options(w, node)):
        for b in range(_options(w, node)):
            if i == b or w.cost[at + i] == np.inf or w.cost[at + b] == np.inf:
                continue
            excess = _worst_excess(w, node, b, i)
            if excess < 0 or (excess == 0 and b < i):
                w.cost[at + i] = np.inf
                changed = True
    return changed


@lean
def _worst_excess(w: Work, node: int, b: int, i: int) -> float:
    """How much dearer option `b` than `i` can be, over all answers of the neighbours."""
    excess = w.cost[w.start[node] + b] - w.cost[w.start[node] + i]
    h = w.head[node]
    while h >= 0 and excess < np.inf:
        m, si, sj, other = _view(w, h)
        worst = -np.inf
        for j in range(_options(w, other)):
            x, y = w.pool[m + b * si + j * sj], w.pool[m + i * si + j * sj]
            if w.cost[w.start[other] + j] < np.inf and y < np.inf:
                worst = max(worst, x - y)
        excess += worst
        h = w.after[h]
    return float(excess)
