"""Reductions of a PBQP, compiled, and branch and bound over what they leave.

The lower bound comes from equivalent shifts of costs, compiled.
Sequential tree-reweighted message passing (Kolmogorov 2006, doi 10.1109/TPAMI.2006.200), with
the messages written into the costs: every visit moves the minima of all edges into the node and
hands equal shares on to the edges that lead onwards. Each step keeps the cost of every
assignment, so the sum of all minima never exceeds the optimum, whatever the order of steps.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import njit_internal, njit_no_refcount
from placewright.solvers._pbqp_work import (
    FIRED,
    POOL_TOP,
    RECORDS,
    Arrays,
    WorkList,
    alive,
    branching_node,
    cheapest,
    components,
    delete,
    edge_between,
    evaluate,
    extract,
    highest,
    insert,
    options,
    prepare,
    retire,
    view,
)

MAX_DEPTH = 150
"""Deeper subproblems are answered by RN, without proof: the search is recursive."""

ROOT_SWEEPS, SWEEPS = 100, 8


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """When to stop opening branches."""

    branches: int
    deadline_s: float


class GreedyAnswer(NamedTuple):
    """Assignment by reductions with RN."""

    choice: IntArray
    value: float
    fired: int


class Found(NamedTuple):
    """Best assignment of a subproblem (``None`` if nothing beat the given value) and a bound."""

    choice: IntArray | None
    value: float
    lower: float


class _Core(NamedTuple):
    """A connected irreducible part: its costs shifted for the bound, and its node numbers."""

    arrays: Arrays
    nodes: IntArray
    greedy: GreedyAnswer
    lower: float


def reduce_greedily(arrays: Arrays) -> GreedyAnswer:
    """R0, RI, RII, and RN where nothing else applies."""
    w = prepare(arrays, _first_room(arrays))
    normalise_all(w)
    w = _reduced(w, greedy=True)
    choice = np.zeros(len(arrays.start) - 1, dtype=np.int64)
    back_propagate(w, choice)
    return GreedyAnswer(choice, float(evaluate(arrays, choice)), int(w.counts[FIRED]))


class PbqpSearch:
    """One exact solve: counts the branches it opens."""

    def __init__(self, limits: SearchLimits, scale: float) -> None:
        self.limits = limits
        self.tolerance = 1e-9 * (scale if math.isfinite(scale) else 1.0)
        self.opened = 0

    def descend(
        self, arrays: Arrays, upper: float, fixed: tuple[int, int] | None = None, depth: int = 0
    ) -> Found:
        """Solve `arrays`, with one node decided if `fixed`, to better than `upper`."""
        # The option is fixed on the whole, and the rest reduced again: a core often falls to
        # pieces.
        w = prepare(arrays, _first_room(arrays))
        normalise_all(w)
        if fixed is not None:
            fix(w, *fixed)
        w = _reduced(w, greedy=False)
        choice = np.zeros(len(arrays.start) - 1, dtype=np.int64)
        settled = float(settled_cost(w))
        cores = _cores(w, self.tolerance, ROOT_SWEEPS if depth == 0 else SWEEPS)
        lower = settled + sum(core.lower for core in cores)
        if lower >= upper - self.tolerance:
            return Found(None, math.inf, lower)
        # What the other parts cost at least may be taken off what this one may cost; parts that are
        # done count with the bounds that they have reached.
        open_lower = lower
        for core in cores:
            found = self._branch(core, upper - (open_lower - core.lower), depth)
            open_lower += found.lower - core.lower
            if found.choice is not None:
                choice[core.nodes] = found.choice
        back_propagate(w, choice)
        return Found(choice, float(evaluate(arrays, choice)), open_lower)

    def _branch(self, core: _Core, upper: float, depth: int) -> Found:
        """Try every option of one node of the core, the most promising first."""
        best = Found(core.greedy.choice, core.greedy.value, core.lower)
        if best.value - best.lower <= self.tolerance or depth >= MAX_DEPTH:
            return best
        # Only for the degrees.
        w = prepare(core.arrays, 0)
        node = int(branching_node(w))
        costs = core.arrays.cost[core.arrays.start[node] : core.arrays.start[node + 1]]
        lower = math.inf
        for option in np.argsort(costs, kind="stable"):
            if costs[option] == np.inf:
                continue
            if self._exhausted():
                # Options that were not tried cost what the whole core costs at least.
                lower = min(lower, core.lower)
                break
            self.opened += 1
            reach = min(upper, best.value)
            found = self.descend(core.arrays, reach, (node, int(option)), depth + 1)
            # A child without a choice was cut off at `reach`: its bound then is about `reach`.
            lower = min(lower, max(found.lower, core.lower))
            if found.choice is not None and found.value < best.value:
                best = found
        return Found(best.choice, best.value, min(lower, best.value, upper))

    def _exhausted(self) -> bool:
        return self.opened >= self.limits.branches or time.perf_counter() >= self.limits.deadline_s


def _cores(w: WorkList, tolerance: float, sweeps: int) -> list[_Core]:
    """The connected parts that are left, each with a bound and an RN answer."""
    label = components(w)
    found = []
    for part in range(int(label.max(initial=-1)) + 1):
        arrays, nodes = extract(w, (label == part).astype(np.int64))
        greedy = reduce_greedily(arrays)
        # What cannot beat the part's own greedy answer is forbidden, so the bound may pass the
        # optimum where that answer is optimal; hence the minimum below.
        inner = prepare(arrays, 0)
        lower = float(tighten(inner, sweeps, greedy.value, tolerance))
        shifted = Arrays(arrays.start, inner.cost, arrays.ends, arrays.matrix, inner.pool)
        # Shifted costs show RN more of what lies beyond the neighbours. Both count costs alike.
        again = reduce_greedily(shifted)
        if again.value < greedy.value:
            greedy = again
        found.append(_Core(shifted, nodes, greedy, min(lower, greedy.value)))
    return found


def _first_room(arrays: Arrays) -> int:
    """Room for RII matrices that is enough in most cases."""
    return 4 * len(arrays.cost) + len(arrays.pool) // 2


def _reduced(w: WorkList, *, greedy: bool) -> WorkList:
    """Run the reductions; where they run out of room, double it."""
    while run(w, greedy) == POOL_FULL:
        pool = np.empty(2 * len(w.pool) + int((w.start[1:] - w.start[:-1]).max()) ** 2)
        pool[: len(w.pool)] = w.pool
        w = w._replace(pool=pool)
    return w


@njit_no_refcount
def tighten(w: WorkList, sweeps: int, upper: float, tolerance: float) -> float:
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
def sweep(w: WorkList, sweeps: int) -> float:
    """Shift costs for `sweeps` passes there and back; the bound that is reached."""
    for _ in range(sweeps):
        _there_and_back(w)
    return _bound(w)


@njit_internal
def _there_and_back(w: WorkList) -> None:
    """One pass over all nodes, and one in the opposite order."""
    for node in range(len(w.head)):
        _visit(w, node, True)
    for node in range(len(w.head) - 1, -1, -1):
        _visit(w, node, False)


@njit_internal
def _bound(w: WorkList) -> float:
    total = 0.0
    for i in range(len(w.head)):
        total += cheapest(w, i)
    for k in range(len(w.ends)):
        if alive(w, k):
            total += _edge_minimum(w, k)
    return total


@njit_internal
def _edge_minimum(w: WorkList, edge: int) -> float:
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
def _visit(w: WorkList, node: int, forward: bool) -> None:
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
def _push_costs(w: WorkList, node: int, h: int, share: float, low: float) -> None:
    m, si, sj, other = view(w, h)
    for i in range(options(w, node)):
        c = w.cost[w.start[node] + i]
        if c < np.inf:
            for j in range(options(w, other)):
                w.pool[m + i * si + j * sj] += share * (c - low)


@njit_internal
def _forbid(w: WorkList, bound: float, upper: float) -> None:
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
