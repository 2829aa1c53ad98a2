"""Partitioned boolean quadratic problems: choose one option per node, pay nodes and edges.

    min  sum_i c_i[x_i] + sum_(i,j) C_ij[x_i, x_j]

Infinite costs forbid. Nodes of degree 0, 1 and 2 are folded away without loss (R0, RI, RII);
what remains is decided by the heuristic RN, and made exact by branching with a lower bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import checked
from placewright.numerics.arrays import (
    FloatArray,
    FloatVector,
    IntArray,
    IntVector,
    Numbers,
    NumberTable,
    freeze_arrays,
    thawed,
)
from placewright.solvers._pbqp_search import PbqpSearch, SearchLimits, reduce_greedily
from placewright.solvers._pbqp_work import Arrays, evaluate


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Pbqp:
    """A problem as flat arrays, validated once; at most one edge between two nodes.

    With n nodes and e edges:

    Attributes
    ----------
    start
        Shape (n + 1,): the options of node i are ``cost[start[i]:start[i + 1]]``.
    cost
        Node costs; ``inf`` forbids an option.
    ends
        Shape (e, 2): the nodes of each edge.
    matrix
        Shape (e,): where the edge's matrix begins in `pool`, stored row by row with a row per
        option of ``ends[:, 0]``.
    pool
        Edge costs; ``inf`` forbids a pair.
    """

    start: IntVector
    cost: FloatVector
    ends: IntArray
    matrix: IntVector
    pool: FloatVector

    def __post_init__(self) -> None:
        freeze_arrays(self)
        if self.ends.size == 0:
            object.__setattr__(self, "ends", np.zeros((0, 2), dtype=np.int64))
        _check(self)

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.start) - 1

    @checked
    def value(self, choice: IntArray) -> float:
        """Cost of choosing option ``choice[i]`` at every node i; shape (n,)."""
        check_choice(self, choice)
        return float(evaluate(self.arrays, choice))

    @property
    def arrays(self) -> Arrays:
        """The bare arrays, as the kernels take them."""
        parts = (self.start, self.cost, self.ends, self.matrix, self.pool)
        return Arrays(*(thawed(part) for part in parts))

    @staticmethod
    @checked
    def of(
        node_costs: Sequence[Numbers], edges: Sequence[tuple[int, int, NumberTable]] = ()
    ) -> Pbqp:
        """Build from a list of cost vectors and a list of ``(i, j, matrix)``.

        Several edges between two nodes are added up; an edge of a node with itself becomes a
        node cost.
        """
        costs = [np.array(c, dtype=np.float64) for c in node_costs]
        joined: dict[tuple[int, int], FloatArray] = {}
        for i, j, given in edges:
            matrix = np.array(given, dtype=np.float64)
            _check_matrix(costs, i, j, matrix)
            if i == j:
                costs[i] += np.diag(matrix)
                continue
            key, oriented = ((i, j), matrix) if i < j else ((j, i), matrix.T)
            joined[key] = joined[key] + oriented if key in joined else oriented
        sizes = [m.size for m in joined.values()]
        return Pbqp(
            start=np.cumsum([0, *(len(c) for c in costs)]),
            cost=np.concatenate([np.zeros(0), *costs]),
            ends=np.array(list(joined), dtype=np.int64).reshape(-1, 2),
            matrix=np.cumsum([0, *sizes])[: len(sizes)],
            pool=np.concatenate([np.zeros(0), *(m.ravel() for m in joined.values())]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PbqpSolution:
    """An assignment and what is known about it.

    Attributes
    ----------
    choice
        Shape (n,), option of every node.
    value
        Its cost; ``inf`` if no assignment without forbidden entries was found.
    lower_bound
        No assignment is cheaper (up to rounding, about 1e-9 relative).
    proved
        Whether `value` is the optimum (or, where it is ``inf``, that nothing is allowed).
    heuristic_decisions
        How often RN fired in the first descent; 0 means that branching was not needed.
    branches
        Nodes of the branch-and-bound tree.
    """

    choice: IntArray
    value: float
    lower_bound: float
    proved: bool
    heuristic_decisions: int
    branches: int


@checked
def solve_pbqp(
    problem: Pbqp,
    *,
    exact: bool = True,
    branch_limit: int = 2_000,
    deadline_s: float = math.inf,
) -> PbqpSolution:
    """The cheapest assignment that reductions, RN and branching find.

    Parameters
    ----------
    exact
        Branch on what RN would decide, until proved or a limit is reached. Without it the
        answer is that of RN and is proved only where RN did not fire.
    branch_limit
        Nodes of the branch-and-bound tree; makes the effort the same on every machine.
    deadline_s
        ``time.perf_counter()`` value after which no branch is opened.

    Notes
    -----
    Reductions: Scholz and Eckstein 2002 (doi 10.1145/513829.513854), Hames and Scholz 2006
    (doi 10.1007/11860990_21), O(n k^3) without RN for k options. Departures: options that
    another one dominates whatever the neighbours do are removed where RN would fire; branching
    takes connected components of the core apart; the bound is tree-reweighted.
    """
    greedy = reduce_greedily(problem.arrays)
    late = time.perf_counter() >= deadline_s
    if greedy.fired == 0 or late or not exact:
        proved = greedy.fired == 0
        lower = greedy.value if proved else -math.inf
        return PbqpSolution(greedy.choice, greedy.value, lower, proved, greedy.fired, 0)
    search = PbqpSearch(SearchLimits(branch_limit, deadline_s), scale=abs(greedy.value))
    found = search.descend(problem.arrays, greedy.value)
    value, choice = greedy.value, greedy.choice
    if found.choice is not None and found.value < value:
        value, choice = found.value, found.choice
    lower = min(found.lower, value)
    # Not `<=`: where both are infinite, nothing is allowed, and that is proved.
    proved = not value - lower > search.tolerance
    return PbqpSolution(choice, value, lower, proved, greedy.fired, search.opened)


def _check(p: Pbqp) -> None:
    where = "PBQP"
    sizes = np.diff(p.start)
    if len(p.start) == 0 or p.start[0] != 0 or p.start[-1] != len(p.cost) or (sizes < 1).any():
        what = "every node needs at least one option: start must ascend from 0 to the end of cost"
        by = f"start ends at {p.start[-1] if len(p.start) else None}, {len(p.cost)} costs"
        raise InputError(what, where=where, by=by)
    if p.ends.ndim != 2 or p.ends.shape[1] != 2:
        raise InputError("ends needs two nodes per edge", where=where, by=f"got {p.ends.shape}")
    if len(p.ends) != len(p.matrix):
        raise InputError(
            "ends and matrix differ in length", where=where, by=f"{len(p.ends)}, {len(p.matrix)}"
        )
    for key in ("cost", "pool"):
        bad = np.flatnonzero(np.isnan(getattr(p, key)) | (getattr(p, key) == -np.inf))
        if len(bad):
            raise InputError(
                f"{key} must not be NaN or -inf", where=where, by=f"{key}[{int(bad[0])}]"
            )
    if len(p.ends) == 0:
        return
    if p.ends.min() < 0 or p.ends.max() >= p.n:
        raise InputError("an edge names a node that does not exist", where=where)
    low, high = p.ends.min(axis=1), p.ends.max(axis=1)
    if (low == high).any() or len(np.unique(low * p.n + high)) < len(low):
        raise InputError(
            "an edge joins a node with itself, or two edges join the same nodes",
            where=where,
            hint="Pbqp.of adds such edges up",
        )
    area = sizes[p.ends[:, 0]] * sizes[p.ends[:, 1]]
    if p.matrix.min() < 0 or (p.matrix + area).max() > len(p.pool):
        raise InputError("an edge's matrix reaches past the pool", where=where)


def check_choice(p: Pbqp, choice: IntArray) -> None:
    """Raise where a choice is not one option of every node: kernels look at no limits.

    Raises `InputError`, which names the first node without one.
    """
    if choice.shape != (p.n,):
        by = f"got shape {choice.shape}, expected ({p.n},)"
        raise InputError("choice needs one option per node", where="PBQP", by=by)
    wrong = np.flatnonzero((choice < 0) | (choice >= np.diff(p.start)))
    if len(wrong):
        i = int(wrong[0])
        by = f"got {choice[i]}, there are {int(p.start[i + 1] - p.start[i])}"
        raise InputError(f"choice[{i}] is no option of its node", where="PBQP", by=by)


def _check_matrix(costs: list[FloatArray], i: int, j: int, matrix: FloatArray) -> None:
    for node in (i, j):
        if not 0 <= node < len(costs):
            raise InputError(f"node {node} does not exist", where=f"PBQP edge ({i}, {j})")
    expected = (len(costs[i]), len(costs[j]))
    if matrix.shape != expected:
        raise InputError(
            "the matrix has the wrong shape",
            where=f"PBQP edge ({i}, {j})",
            by=f"{matrix.shape}, expected {expected}",
        )
