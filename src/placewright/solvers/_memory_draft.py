"""What contraction leaves of a PBQP with memory, reduced further without loss.

Beside R0, RI and RII, which apply only where every option uses the same memory, options are
removed that another one beats in cost whatever the neighbours do and in memory at every moment;
a leaf follows its neighbour where one option is the best in both for each of the neighbour's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_no_refcount
from placewright.solvers._memory_contract import Spans
from placewright.solvers._pbqp_work import Arrays

MOST_COMPARED = 3_000_000
"""Matrix entries beyond which two options of a node are not compared."""

Undo = tuple[int, Callable[[dict[int, int]], int]]


@dataclass(slots=True)
class Draft:
    """A problem under reduction; lists by node, ``None`` or empty where a node is gone.

    Attributes
    ----------
    edges
        ``edges[i][j]``: matrix with a row per option of i; ``edges[j][i]`` is its transpose.
    names
        The option's number in the problem that was given.
    moments, use
        Per node: shape (s, 2) intervals, shape (s, options) usages.
    base
        Usage that no choice changes: (live_from, live_until, amount).
    undo
        How the nodes that are gone choose, given all later ones; to be read backwards.
    """

    cost: list[FloatArray]
    edges: list[dict[int, FloatArray]]
    names: list[IntArray]
    moments: list[IntArray]
    use: list[IntArray]
    live: list[bool]
    base: list[tuple[int, int, int]] = field(default_factory=list)
    constant: float = 0.0
    undo: list[Undo] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    queued: list[bool] = field(default_factory=list)

    def touch(self, i: int) -> None:
        """Look at node i again."""
        if self.live[i] and not self.queued[i]:
            self.queued[i] = True
            self.waiting.append(i)

    def keep(self, i: int, mask: BoolArray) -> None:
        """Only these options of node i."""
        if not mask.any():
            raise InfeasibleError("forbidden costs leave a node no option", where="PBQP")
        self.cost[i], self.names[i] = self.cost[i][mask], self.names[i][mask]
        self.use[i] = self.use[i][:, mask]
        for j in self.edges[i]:
            self.put(i, j, self.edges[i][j][mask])
        self.touch(i)

    def put(self, i: int, j: int, matrix: FloatArray) -> None:
        """Set the edge between i and j."""
        self.edges[i][j], self.edges[j][i] = matrix, matrix.T
        self.touch(i)
        self.touch(j)

    def cut(self, i: int, j: int) -> FloatArray:
        """Take the edge between i and j away."""
        self.touch(i)
        self.touch(j)
        del self.edges[j][i]
        return self.edges[i].pop(j)

    def pop(self, i: int, chosen: Callable[[dict[int, int]], int]) -> None:
        """Node i is gone; `chosen` gives the position of its option in the end."""
        # Positions shift when options are dropped; names do not. `chosen` works on the positions of
        # now.
        names = self.names[i]
        self.live[i] = False
        self.undo.append((i, lambda later: int(names[chosen(later)])))

    def position(self, i: int) -> Callable[[dict[int, int]], int]:
        """Where, among the options node i has now, its final choice stands."""
        # A snapshot: later, i may have lost options, but chooses one of these.
        names = {int(name): k for k, name in enumerate(self.names[i].tolist())}
        return lambda later: names[later[i]]

    def choose(self, later: dict[int, int]) -> IntArray:
        """Choices of all nodes from those of the live ones, both by the options' first numbers."""
        for node, chosen in reversed(self.undo):
            later[node] = chosen(later)
        return np.array([later[i] for i in range(len(self.live))], dtype=np.int64)


def draft(arrays: Arrays, spans: Spans) -> Draft:
    """Everything as lists, nothing reduced."""
    n, size = len(arrays.start) - 1, np.diff(arrays.start)
    edges: list[dict[int, FloatArray]] = [{} for _ in range(n)]
    for (i, j), at in zip(arrays.ends.tolist(), arrays.matrix.tolist(), strict=True):
        matrix = arrays.pool[at : at + size[i] * size[j]].reshape(size[i], size[j])
        edges[i][j], edges[j][i] = matrix, matrix.T
    by_node = np.searchsorted(spans.node, np.arange(n + 1))
    moments = np.stack([spans.live_from, spans.live_until], axis=1)
    bounds = list(zip(by_node[:-1].tolist(), by_node[1:].tolist(), strict=True))
    return Draft(
        cost=[arrays.cost[arrays.start[i] : arrays.start[i + 1]] for i in range(n)],
        edges=edges,
        names=[np.arange(k) for k in size.tolist()],
        moments=[moments[a:b] for a, b in bounds],
        use=[
            spans.use[spans.at[a] : spans.at[b]].reshape(-1, size[i])
            for i, (a, b) in enumerate(bounds)
        ],
        live=[True] * n,
        waiting=list(range(n))[::-1],
        queued=[True] * n,
    )


def reduce(d: Draft, running: Callable[[], bool] = lambda: True) -> Draft:
    """Apply every rule until none does, or until ``running()`` is false."""
    # A rule that returns true has put back on the list whatever may fold now, its own node
    # included.
    while d.waiting and running():
        i = d.waiting.pop()
        d.queued[i] = False
        if d.live[i] and not (_prune(d, i) or _unload(d, i) or _straighten(d, i)):
            _ = _fold(d, i) or _follow(d, i) or _dominate_leaf(d, i) or _dominate(d, i)
    return d


def _prune(d: Draft, i: int) -> bool:
    """Drop options that cannot be."""
    bad: BoolArray = np.array(d.cost[i] == np.inf)
    for matrix in d.edges[i].values():
        np.logical_or(bad, matrix.min(axis=1) == np.inf, out=bad)
    if bad.any():
        d.keep(i, ~bad)
    return bool(bad.any())


def _unload(d: Draft, i: int) -> bool:
    """Move what every option uses into the base."""
    least = d.use[i].min(axis=1)
    for (live_from, live_until), amount in zip(d.moments[i].tolist(), least.tolist(), strict=True):
        if amount:
            d.base.append((live_from, live_until, amount))
    use = d.use[i] - least[:, None]
    left = use.any(axis=1)
    d.use[i], d.moments[i] = use[left], d.moments[i][left]
    return False


def _straighten(d: Draft, i: int) -> bool:
    """Move minima of rows and columns into the nodes; drop edges of which nothing is left."""
    for j in list(d.edges[i]):
        matrix = d.edges[i][j]
        # Rows have a finite minimum since `_prune`; a column may have none.
        columns = matrix.min(axis=0)
        if (columns == np.inf).any():
            d.keep(j, columns < np.inf)
            d.touch(i)
            return True
        matrix = matrix - columns
        rows = matrix.min(axis=1)
        matrix = matrix - rows[:, None]
        d.cost[i], d.cost[j] = d.cost[i] + rows, d.cost[j] + columns
        d.edges[i][j], d.edges[j][i] = matrix, matrix.T
        if columns.any():
            d.touch(j)
        if not matrix.any():
            d.cut(i, j)
    return False


def _fold(d: Draft, i: int) -> bool:
    """R0, RI, RII on a node whose options all use the same."""
    if len(d.use[i]) or len(d.edges[i]) > 2:
        return False
    ends, cost = list(d.edges[i]), d.cost[i]
    matrices = [d.cut(i, j) for j in ends]
    places = [d.position(j) for j in ends]
    if not ends:
        d.constant += float(cost.min())
    elif len(ends) == 1:
        d.cost[ends[0]] = d.cost[ends[0]] + (cost[:, None] + matrices[0]).min(axis=0)
    else:
        u, v = ends
        d.put(u, v, _cheapest_through(cost, *matrices) + d.edges[u].get(v, np.zeros(())))

    def chosen(later: dict[int, int]) -> int:
        # As they were when it was folded, not as they are later.
        own = cost
        for matrix, place in zip(matrices, places, strict=True):
            own = own + matrix[:, place(later)]
        return int(np.argmin(own))

    d.pop(i, chosen)
    return True


def _cheapest_through(cost: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    """Cost of the best option of a node for every pair of options of its two neighbours."""
    least: FloatArray = (cost[0] + first[0])[:, None] + second[0]
    # Option by option: for all of them at once, 1,000 options each would take 8 GB.
    for own, row, column in zip(cost[1:], first[1:], second[1:], strict=True):
        np.minimum(least, (own + row)[:, None] + column, out=least)
    return least


def _follow(d: Draft, i: int) -> bool:
    """Join a node of at most two edges to a neighbour that determines it."""
    if not 1 <= len(d.edges[i]) <= 2:
        return False
    for j, matrix in d.edges[i].items():
        # Each option of j allows one of i; i may have more, which j then never uses.
        if ((matrix < np.inf).sum(axis=0) == 1).all():
            _join(d, j, i)
            return True
    return False


def _join(d: Draft, a: int, b: int) -> None:
    """Node b becomes part of a, which determines it."""
    place = d.position(a)
    matrix = d.cut(a, b)
    image = np.argmin(matrix, axis=1)
    d.cost[a] = d.cost[a] + matrix[np.arange(len(image)), image] + d.cost[b][image]
    for k in list(d.edges[b]):
        further = d.cut(b, k)[image]
        d.put(a, k, further + d.edges[a][k] if k in d.edges[a] else further)
    d.use[a] = np.concatenate([d.use[a], d.use[b][:, image]])
    d.moments[a] = np.concatenate([d.moments[a], d.moments[b]])
    d.pop(b, lambda later: int(image[place(later)]))
    d.touch(a)


def _uses_no_more(d: Draft, i: int) -> BoolArray:
    """``[a, b]``: option a never uses more than b."""
    rows = np.unique(d.use[i], axis=0) if len(d.use[i]) else d.use[i]
    less = np.ones((len(d.cost[i]), len(d.cost[i])), dtype=np.bool_)
    for row in rows:
        np.logical_and(less, row[:, None] <= row[None, :], out=less)
    return less


def _one_of_equals(better: BoolArray) -> BoolArray:
    """Options that another one is at least as good as; of equals the first stays."""
    stays = np.ones(len(better), dtype=np.bool_)
    # One after the other, the last one first: rounding can make options beat each other in a
    # circle, and one of these must stay.
    for b in range(len(better) - 1, -1, -1):
        stays[b] = False
        stays[b] = not (better[:, b] & stays).any()
    return ~stays


def _dominate_leaf(d: Draft, i: int) -> bool:
    """For each option of its neighbour, forbid a leaf's options that another one beats."""
    if len(d.edges[i]) != 1 or len(d.cost[i]) == 1:
        return False
    ((j, matrix),) = d.edges[i].items()
    less, changed = _uses_no_more(d, i), matrix.copy()
    for c in range(matrix.shape[1]):
        # A leaf meets no one else, so for this option of its neighbour its options can be compared
        # outright.
        total = d.cost[i] + matrix[:, c]
        changed[_one_of_equals(less & (total[:, None] <= total[None, :])), c] = np.inf
    if (changed == matrix).all():
        return False
    d.put(i, j, changed)
    return True


def _dominate(d: Draft, i: int) -> bool:
    """Drop options that another one beats whatever the neighbours do."""
    k, cost = len(d.cost[i]), d.cost[i]
    if k == 1 or any(k * m.size > MOST_COMPARED for m in d.edges[i].values()):
        return False
    better = _uses_no_more(d, i) & ~np.eye(k, dtype=np.bool_)
    if not better.any():
        return False
    # [a, b]: what a costs beyond b at the worst; infinite where a may use more, which rules it out.
    excess = np.where(better, cost[:, None] - cost[None, :], np.inf)
    for matrix in d.edges[i].values():
        if not add_worst_excess(excess, matrix):
            return False
    beaten = _one_of_equals(better & (excess <= 0))
    if beaten.any():
        d.keep(i, ~beaten)
    return bool(beaten.any())


@njit_no_refcount
def add_worst_excess(excess: FloatArray, matrix: FloatArray) -> bool:
    """Add to ``[a, b]`` how much dearer row a can be than row b, where b is allowed.

    Pairs at infinity are left out; whether any other is left.
    """
    left = False
    for a in range(len(matrix)):
        for b in range(len(matrix)):
            if excess[a, b] == np.inf:
                continue
            worst = -np.inf
            for c in range(matrix.shape[1]):
                if matrix[b, c] < np.inf:
                    worst = max(worst, matrix[a, c] - matrix[b, c])
            excess[a, b] += worst
            left = left or excess[a, b] < np.inf
    return left
