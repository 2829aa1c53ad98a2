"""Branch and bound over what the reductions leave of a PBQP."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.solvers._pbqp_bound import tighten
from placewright.solvers._pbqp_kernels import (
    POOL_FULL,
    back_propagate,
    fix,
    normalise_all,
    run,
    settled_cost,
)
from placewright.solvers._pbqp_work import (
    FIRED,
    Arrays,
    Work,
    branching_node,
    components,
    evaluate,
    extract,
    prepare,
)

MAX_DEPTH = 150
"""Deeper subproblems are answered by RN, without proof: the search is recursive."""

ROOT_SWEEPS, SWEEPS = 100, 8


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop opening branches."""

    branches: int
    deadline_s: float


class Greedy(NamedTuple):
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
    greedy: Greedy
    lower: float


def reduce_greedily(arrays: Arrays) -> Greedy:
    """R0, RI, RII, and RN where nothing else applies."""
    w = prepare(arrays, _first_room(arrays))
    normalise_all(w)
    w = _reduced(w, greedy=True)
    choice = np.zeros(len(arrays.start) - 1, dtype=np.int64)
    back_propagate(w, choice)
    return Greedy(choice, float(evaluate(arrays, choice)), int(w.counts[FIRED]))


class Search:
    """One exact solve: counts the branches it opens."""

    def __init__(self, limits: Limits, scale: float) -> None:
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


def _cores(w: Work, tolerance: float, sweeps: int) -> list[_Core]:
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


def _reduced(w: Work, *, greedy: bool) -> Work:
    """Run the reductions; where they run out of room, double it."""
    while run(w, greedy) == POOL_FULL:
        pool = np.empty(2 * len(w.pool) + int((w.start[1:] - w.start[:-1]).max()) ** 2)
        pool[: len(w.pool)] = w.pool
        w = w._replace(pool=pool)
    return w
