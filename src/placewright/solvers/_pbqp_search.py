"""Branch and bound over what the reductions leave of a PBQP.

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
from placewright.solvers._pbqp_kernels import (
    POOL_FULL,
    back_propagate,
    fix,
    normalise_all,
    pull,
    run,
    settled_cost,
)
from placewright.solvers._pbqp_work import (
    FIRED,
    Arrays,
    WorkList,
    alive,
    branching_node,
    cheapest,
    components,
    evaluate,
    extract,
    options,
    prepare,
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
