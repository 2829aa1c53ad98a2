"""Reductions of a PBQP, compiled: normalisation, R0, RI, RII, dominance, RN, back-propagation."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import njit_internal, njit_no_refcount
from placewright.solvers._pbqp_work import (
    FIRED,
    POOL_TOP,
    RECORDS,
    WorkList,
    alive,
    cheapest,
    delete,
    edge_between,
    highest,
    insert,
    options,
    retire,
    view,
)

NOISE = 1e-13
"""What is left of an edge entry is noise if it is below this share of what was taken off."""

DOMINANCE_OPTIONS = 32
"""Dominance compares pairs of options; nodes with more options than this are left out."""

DONE, POOL_FULL = 0, 1


@njit_no_refcount
def normalise_all(w: WorkList) -> None:
    """Normalise every edge that is still there."""
    for k in range(len(w.ends)):
        if alive(w, k):
            _normalise(w, k)


@njit_no_refcount
def run(w: WorkList, greedy: bool) -> int:
    """Reduce until nothing applies; with `greedy` RN decides where nothing else does.

    Returns POOL_FULL where RII needs room for a matrix: give `w` a larger pool, call again.
    """
    while True:
        # Least degree first: R0 and RI never add an edge, RII may add one, RN may lose the optimum.
        if w.bucket[0] >= 0:
            retire(w, w.bucket[0])
        elif len(w.bucket) > 1 and w.bucket[1] >= 0:
            _reduce_one(w, w.bucket[1])
        elif len(w.bucket) > 2 and w.bucket[2] >= 0:
            # Compiled code cannot replace the pool in `w`: the caller does, and nothing is half
            # done.
            if w.counts[POOL_TOP] + room_needed(w, w.bucket[2]) > len(w.pool):
                return POOL_FULL
            _reduce_two(w, w.bucket[2])
        elif not greedy:
            if not _dominate_all(w):
                return DONE
        else:
            node = highest(w)
            if node < 0:
                return DONE
            w.counts[FIRED] += 1
            fix(w, node, _local_best(w, node))


@njit_no_refcount
def fix(w: WorkList, node: int, option: int) -> None:
    """Decide `node`: its edges become costs of its neighbours."""
    while w.head[node] >= 0:
        h = w.head[node]
        m, si, sj, other = view(w, h)
        for j in range(options(w, other)):
            w.cost[w.start[other] + j] += w.pool[m + option * si + j * sj]
        delete(w, h // 2)
    # Its own cost stays: `settled_cost` finds it, and `back_propagate` the choice.
    for i in range(options(w, node)):
        if i != option:
            w.cost[w.start[node] + i] = np.inf
    retire(w, node)


@njit_no_refcount
def back_propagate(w: WorkList, choice: IntArray) -> None:
    """Choose for the retired nodes, last first; `choice` already holds the live nodes'."""
    # A node only depends on neighbours that went after it, which are decided by now. Matrices of
    # deleted edges are still in the pool: new ones are put behind them, never in their place.
    for r in range(w.counts[RECORDS] - 1, -1, -1):
        node = w.record[r, 0]
        best, best_cost = 0, np.inf
        for i in range(options(w, node)):
            c = w.cost[w.start[node] + i]
            # Where in the record its two neighbours stand.
            for a in (1, 5):
                other = w.record[r, a]
                if other >= 0:
                    at = w.record[r, a + 1] + i * w.record[r, a + 2]
                    c += w.pool[at + choice[other] * w.record[r, a + 3]]
            if c < best_cost:
                best, best_cost = i, c
        choice[node] = best


@njit_no_refcount
def settled_cost(w: WorkList) -> float:
    """Sum of the cheapest options of the nodes that left without an edge."""
    total = 0.0
    for r in range(w.counts[RECORDS]):
        if w.record[r, 1] < 0:
            total += cheapest(w, w.record[r, 0])
    return total


@njit_internal
def room_needed(w: WorkList, node: int) -> int:
    """Matrix entries that RII on `node` may add."""
    h = w.head[node]
    u, v = w.ends[h // 2, 1 - h % 2], w.ends[w.after[h] // 2, 1 - w.after[h] % 2]
    return options(w, u) * options(w, v)


@njit_internal
def _note(w: WorkList, slot: int, h: int) -> None:
    """Remember in the next record how its node was tied to its neighbour."""
    m, si, sj, other = view(w, h)
    r, a = w.counts[RECORDS], 1 + 4 * slot
    w.record[r, a], w.record[r, a + 1] = other, m
    w.record[r, a + 2], w.record[r, a + 3] = si, sj


@njit_internal
def _reduce_one(w: WorkList, node: int) -> None:
    """RI: fold `node` into its only neighbour."""
    h = w.head[node]
    m, si, sj, other = view(w, h)
    for j in range(options(w, other)):
        least = np.inf
        for i in range(options(w, node)):
            c = w.cost[w.start[node] + i] + w.pool[m + i * si + j * sj]
            least = min(least, c)
        w.cost[w.start[other] + j] += least
    _note(w, 0, h)
    delete(w, h // 2)
    retire(w, node)


@njit_internal
def _reduce_two(w: WorkList, node: int) -> None:
    """RII: fold `node` into the edge between its two neighbours."""
    h, g = w.head[node], w.after[w.head[node]]
    m, si, sj, u = view(w, h)
    p, ti, tj, v = view(w, g)
    # Where u and v have an edge, the new costs are added to it in place; else they get room at the
    # top of the pool, and the slot of edge g, which goes.
    target = edge_between(w, u, v)
    made = w.counts[POOL_TOP]
    to, su, sv = made, options(w, v), 1
    if target >= 0:
        to, su, sv, _ = view(w, target)
    for j in range(options(w, u)):
        for k in range(options(w, v)):
            least = np.inf
            for i in range(options(w, node)):
                c = w.pool[m + i * si + j * sj] + w.pool[p + i * ti + k * tj]
                least = min(least, w.cost[w.start[node] + i] + c)
            if target >= 0:
                least += w.pool[to + j * su + k * sv]
            w.pool[to + j * su + k * sv] = least
    _note(w, 0, h)
    _note(w, 1, g)
    delete(w, h // 2)
    delete(w, g // 2)
    retire(w, node)
    # `ends` of edge g change hands here: its record has what is needed of it already.
    edge = target // 2
    if target < 0:
        edge = g // 2
        w.counts[POOL_TOP] += options(w, u) * options(w, v)
        insert(w, edge, u, v, made)
    _normalise(w, edge)


@njit_internal
def _normalise(w: WorkList, edge: int) -> None:
    """Move row and column minima into the node costs; delete the edge if nothing is left.

    What remains of an entry is rounding noise if it is tiny beside what was taken off it.
    """
    m, si, sj, v = view(w, 2 * edge)
    u = w.ends[edge, 0]
    pull(w, 2 * edge)
    pull(w, 2 * edge + 1)
    left = False
    for i in range(options(w, u)):
        for j in range(options(w, v)):
            at = m + i * si + j * sj
            # Pairs with a forbidden option may be anything: the option itself forbids them.
            allowed = w.cost[w.start[u] + i] < np.inf and w.cost[w.start[v] + j] < np.inf
            if not allowed or w.pool[at] <= NOISE * (abs(w.minima[0, i]) + abs(w.minima[1, j])):
                w.pool[at] = 0.0
            left = left or w.pool[at] > 0
    if not left:
        delete(w, edge)


@njit_internal
def pull(w: WorkList, h: int) -> None:
    """Move the minima of one side, over allowed options of the other, into its node."""
    node = w.ends[h // 2, h % 2]
    m, si, sj, other = view(w, h)
    for i in range(options(w, node)):
        least = np.inf
        w.minima[h % 2, i] = 0.0
        if w.cost[w.start[node] + i] == np.inf:
            continue
        for j in range(options(w, other)):
            if w.cost[w.start[other] + j] < np.inf:
                least = min(least, w.pool[m + i * si + j * sj])
        w.cost[w.start[node] + i] += least
        if least < np.inf:
            w.minima[h % 2, i] = least
            for j in range(options(w, other)):
                w.pool[m + i * si + j * sj] -= least


@njit_internal
def _local_best(w: WorkList, node: int) -> int:
    """RN: the option that is cheapest when every neighbour follows it alone."""
    best, best_cost = 0, np.inf
    for i in range(options(w, node)):
        total = w.cost[w.start[node] + i]
        h = w.head[node]
        # The bound that every neighbour alone would give, not what they cost together.
        while h >= 0 and total < np.inf:
            m, si, sj, other = view(w, h)
            least = np.inf
            for j in range(options(w, other)):
                least = min(least, w.pool[m + i * si + j * sj] + w.cost[w.start[other] + j])
            total += least
            h = w.after[h]
        if total < best_cost:
            best, best_cost = i, total
    return best


@njit_internal
def _dominate_all(w: WorkList) -> bool:
    """Forbid dominated options everywhere; whether that made a node ready for RI or RII."""
    changed = False
    for node in range(len(w.head)):
        if w.degree[node] > 2 and options(w, node) <= DOMINANCE_OPTIONS and _dominate(w, node):
            changed = True
            h = w.head[node]
            while h >= 0:
                # `_normalise` may delete the edge, and with it its place in the list.
                following = w.after[h]
                _normalise(w, h // 2)
                h = following
    return changed


@njit_internal
def _dominate(w: WorkList, node: int) -> bool:
    """Forbid options that another one beats whatever the neighbours do."""
    changed = False
    at = w.start[node]
    for i in range(options(w, node)):
        for b in range(options(w, node)):
            if i == b or w.cost[at + i] == np.inf or w.cost[at + b] == np.inf:
                continue
            excess = _worst_excess(w, node, b, i)
            # Of equal options the first stays; one that has gone beats no other, so one is left in
            # any case.
            if excess < 0 or (excess == 0 and b < i):
                w.cost[at + i] = np.inf
                changed = True
    return changed


@njit_internal
def _worst_excess(w: WorkList, node: int, b: int, i: int) -> float:
    """How much dearer option `b` than `i` can be, over all answers of the neighbours."""
    excess = w.cost[w.start[node] + b] - w.cost[w.start[node] + i]
    h = w.head[node]
    while h >= 0 and excess < np.inf:
        m, si, sj, other = view(w, h)
        worst = -np.inf
        for j in range(options(w, other)):
            x, y = w.pool[m + b * si + j * sj], w.pool[m + i * si + j * sj]
            # Where i itself is forbidden, b cannot be dearer; where only b is, x - y is infinite.
            if w.cost[w.start[other] + j] < np.inf and y < np.inf:
                worst = max(worst, x - y)
        excess += worst
        h = w.after[h]
    return float(excess)
