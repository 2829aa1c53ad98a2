"""Lower bound of a PBQP by equivalent shifts of costs, compiled.

Sequential tree-reweighted message passing (Kolmogorov 2006, doi 10.1109/TPAMI.2006.200), with
the messages written into the costs: every visit moves the minima of all edges into the node and
hands equal shares on to the edges that lead onwards. Each step keeps the cost of every
assignment, so the sum of all minima never exceeds the optimum, whatever the order of steps.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.njit import njit_internal, njit_no_refcount
from placewright.solvers._pbqp_kernels import pull
from placewright.solvers._pbqp_work import Work, alive, cheapest, options, view


@njit_no_refcount
def tighten(w: Work, sweeps: int, upper: float, tolerance: float) -> float:
    """Shift costs for at most `sweeps` passes there and back; the bound that is reached.

    Options and pairs whose bound reaches `upper` are forbidden: nothing cheaper has them.
    """
    before = _bound(w)
    _forbid(w, before, upper - tolerance)
    for _ in range(sweeps):
        _there_and_back(w)
        bound = _bound(w)
        _forbid(w, bound, upper - tolerance)
        # Written so that NaN (an infinite bound twice) ends it too. A sweep is not worth its time
        # once it closes less than a ten-thousandth of the gap.
        if not (bound - before > 0.01 * tolerance + 1e-4 * abs(upper - bound)):
            return bound
        before = bound
        if bound >= upper - tolerance:
            break
    return before


@njit_no_refcount
def sweep(w: Work, sweeps: int) -> float:
    """Shift costs for `sweeps` passes there and back; the bound that is reached."""
    for _ in range(sweeps):
        _there_and_back(w)
    return _bound(w)


@njit_internal
def _there_and_back(w: Work) -> None:
    """One pass over all nodes, and one in the opposite order."""
    for node in range(len(w.head)):
        _visit(w, node, True)
    for node in range(len(w.head) - 1, -1, -1):
        _visit(w, node, False)


@njit_internal
def _bound(w: Work) -> float:
    total = 0.0
    for i in range(len(w.head)):
        total += cheapest(w, i)
    for k in range(len(w.ends)):
        if alive(w, k):
            total += _edge_minimum(w, k)
    return total


@njit_internal
def _edge_minimum(w: Work, edge: int) -> float:
    """Smallest entry among allowed options, 0 where a node has none left."""
    m, si, sj, other = view(w, 2 * edge)
    node = w.ends[edge, 0]
    least = np.inf
    for i in range(options(w, node)):
        for j in range(options(w, other)):
            # `pull` leaves entries of forbidden options as they are: they must not count.
            both = w.cost[w.start[node] + i] + w.cost[w.start[other] + j]
            if both < np.inf:
                least = min(least, w.pool[m + i * si + j * sj])
    return least if least < np.inf else 0.0


@njit_internal
def _visit(w: Work, node: int, forward: bool) -> None:
    """Gather all minima at `node`, then share its costs among the edges ahead."""
    ahead = behind = 0
    h = w.head[node]
    while h >= 0:
        pull(w, h)
        if (w.ends[h // 2, 1 - h % 2] > node) == forward:
            ahead += 1
        else:
            behind += 1
        h = w.after[h]
    low = cheapest(w, node)
    if ahead == 0 or low == np.inf:
        return
    # Kolmogorov's weight: a node lies on that many monotonic chains.
    share = 1.0 / max(ahead, behind)
    h = w.head[node]
    while h >= 0:
        if (w.ends[h // 2, 1 - h % 2] > node) == forward:
            _push_costs(w, node, h, share, low)
        h = w.after[h]
    # What was pushed onto the edges, taken off the node: every assignment costs what it did.
    for i in range(w.start[node], w.start[node + 1]):
        if w.cost[i] < np.inf:
            w.cost[i] -= ahead * share * (w.cost[i] - low)


@njit_internal
def _push_costs(w: Work, node: int, h: int, share: float, low: float) -> None:
    m, si, sj, other = view(w, h)
    for i in range(options(w, node)):
        c = w.cost[w.start[node] + i]
        if c < np.inf:
            for j in range(options(w, other)):
                w.pool[m + i * si + j * sj] += share * (c - low)


@njit_internal
def _forbid(w: Work, bound: float, upper: float) -> None:
    """Forbid options and pairs that no assignment cheaper than `upper` can have."""
    for i in range(len(w.head)):
        low = cheapest(w, i)
        for a in range(w.start[i], w.start[i + 1]):
            # The bound with the cheapest option exchanged for this one bounds all assignments that
            # have it.
            if bound - low + w.cost[a] >= upper:
                w.cost[a] = np.inf
    for k in range(len(w.ends)):
        if alive(w, k):
            # Over the options that are still allowed: forbidding some before can only raise `low`,
            # which forbids less.
            low = _edge_minimum(w, k)
            size = options(w, w.ends[k, 0]) * options(w, w.ends[k, 1])
            for a in range(w.matrix[k], w.matrix[k] + size):
                if bound - low + w.pool[a] >= upper:
                    w.pool[a] = np.inf
