"""A problem as a chain: units in the order of execution, bytes over every cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached
from placewright.operators.costs import Groups, linked
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """u units in a line; a cut c (0 to u) is between the units c - 1 and c.

    Attributes
    ----------
    unit
        Shape (n,), of every operator.
    seconds
        Shape (m, u), of a unit on a device; ``inf`` where it may not be.
    early_s
        Shape (m, u), the part of it that reads nothing, and is done while a device still waits
        for its first input: weights transposed, masks made.
    resident_bytes
        Shape (u,).
    ahead_bytes, ahead_count
        Shape (u + 1,), tensors that are made before a cut and read behind it. Those that are
        made so long before that they can be sent meanwhile cost nothing there.
    back_bytes, back_count
        The other way: gradients, and what is made and read in one group far apart.
    """

    unit: IntArray
    seconds: FloatArray
    early_s: FloatArray
    resident_bytes: FloatArray
    ahead_bytes: FloatArray
    ahead_count: FloatArray
    back_bytes: FloatArray
    back_count: FloatArray

    @property
    def units(self) -> int:
        """How many."""
        return len(self.resident_bytes)


def chain_of(problem: OperatorProblem, groups: Groups, unit: IntArray) -> Chain:
    """The chain of units, given the unit of every operator (of a whole colocation group)."""
    p, u = problem, int(unit.max()) + 1
    allowed = groups.allowed[groups.group]
    reads_nothing = (np.diff(p.topology.in_offsets) == 0)[:, None]
    tensor = p.consumed
    made, read = unit[p.tensor_producer[tensor]], unit[p.consumers]
    ahead = _crossing(u, p, tensor, made, read, _sent_by(p, groups, u, unit))
    # Backwards is forwards in the mirror: cut c is cut u - c there, hence the reversal below.
    back = _crossing(u, p, tensor, u - 1 - made, u - 1 - read, np.full(p.t, u))
    return Chain(
        unit,
        _by_unit(unit, u, np.where(allowed, p.compute_s, np.inf)),
        _by_unit(unit, u, np.where(reads_nothing & allowed, p.compute_s, 0.0)),
        np.bincount(unit, p.resident_bytes, u).astype(np.float64),
        ahead[0],
        ahead[1],
        back[0][::-1].copy(),
        back[1][::-1].copy(),
    )


def coarse(chain: Chain, most: int) -> Chain:
    """At most `most` units: about even shares of time and bytes, cut where least crosses."""
    if chain.units <= max(1, most):
        return chain
    finite = np.where(np.isfinite(chain.seconds), chain.seconds, 0.0).sum(axis=0)
    share = finite / max(finite.sum(), 1e-300)
    share = share + chain.resident_bytes / max(chain.resident_bytes.sum(), 1e-300) + 1 / chain.units
    behind = np.cumsum(share)[:-1] / share.sum()
    # One cut is kept per bucket of the line's share: `most - 1` cuts make `most` units.
    bucket = np.minimum((behind * (most - 1)).astype(np.int64), most - 2)
    crossing = (chain.ahead_bytes + chain.back_bytes)[1:-1]
    count = (chain.ahead_count + chain.back_count)[1:-1]
    order = np.lexsort((count, crossing, bucket))
    _, at = np.unique(bucket[order], return_index=True)
    kept = np.concatenate([[0], np.sort(order[at]) + 1, [chain.units]])
    merged = np.repeat(np.arange(len(kept) - 1), np.diff(kept))
    return Chain(
        merged[chain.unit],
        np.add.reduceat(chain.seconds, kept[:-1], axis=1),
        np.add.reduceat(chain.early_s, kept[:-1], axis=1),
        np.add.reduceat(chain.resident_bytes, kept[:-1]),
        chain.ahead_bytes[kept],
        chain.ahead_count[kept],
        chain.back_bytes[kept],
        chain.back_count[kept],
    )


def _sent_by(p: OperatorProblem, groups: Groups, u: int, unit: IntArray) -> IntArray:
    """Shape (t,): the last cut at which a tensor is still on its way, at the fastest speeds.

    What a group makes is taken to be made by its costliest operator: views of it may stand late
    in the line and wait for nothing.
    """
    pairs = linked(p)
    if not pairs.any():
        return np.full(p.t, u)
    line = np.argsort(depth_first_line(p))
    end_s = np.empty(p.n)
    end_s[line] = np.cumsum(p.compute_s.min(axis=1)[line])
    begin_s = np.full(u + 1, np.inf)
    np.minimum.at(begin_s, unit, end_s - p.compute_s.min(axis=1))
    # When the first operator behind each cut begins: rising, so that it can be searched.
    cut_s = np.minimum.accumulate(begin_s[::-1])[::-1]
    way_s = p.latency_s[pairs].mean() + p.tensor_bytes * p.seconds_per_byte[pairs].mean()
    made_s = np.minimum(end_s, end_s[_leaders(p, groups)][groups.group])
    by = made_s[p.tensor_producer] + way_s
    return np.asarray(np.searchsorted(cut_s, by, side="right") - 1)


def _by_unit(unit: IntArray, u: int, seconds: FloatArray) -> FloatArray:
    """Shape (m, u), from shape (n, m)."""
    total = np.zeros((u, seconds.shape[1]))
    np.add.at(total, unit, seconds)
    return np.ascontiguousarray(total.T)


def _crossing(
    u: int, p: OperatorProblem, tensor: IntArray, made: IntArray, read: IntArray, until: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Bytes and number of tensors over every cut, to the last reader or the cut `until`."""
    last = np.full(p.t, -1)
    first = np.full(p.t, -1)
    np.maximum.at(last, tensor, read)
    first[tensor] = made
    last = np.minimum(last, until)
    over = np.flatnonzero(last > first)
    found = []
    for weight in (p.tensor_bytes[over], np.ones(len(over))):
        # Differences: made in unit f and read in unit l, a tensor crosses cuts f + 1 to l.
        change = np.bincount(first[over] + 1, weight, u + 2) - np.bincount(
            last[over] + 1, weight, u + 2
        )
        found.append(np.maximum(np.cumsum(change)[: u + 1], 0.0))
    return found[0], found[1]


def fastest_devices(chain: Chain, most: int) -> IntArray:
    """At most `most` devices, in their order: those that can run most units, then the fastest."""
    finite = np.isfinite(chain.seconds)
    runs = finite.sum(axis=1)
    mean_s = np.where(finite, chain.seconds, 0.0).sum(axis=1) / np.maximum(1, runs)
    return np.sort(np.lexsort((mean_s, -runs))[:most])


def units_by_group(problem: OperatorProblem, groups: Groups) -> IntArray:
    """Every colocation group a unit, where its costliest operator stands in the line."""
    position = depth_first_line(problem)
    return _ranked(position[_leaders(problem, groups)])[groups.group]


def units_by_module(problem: OperatorProblem, groups: Groups) -> IntArray:
    """Every module a unit, with its backward pass, where its first operator stands in the line.

    A module of a class that is never split is one with all that is in it. A group belongs to the
    module of its costliest operator, alone where that has none.
    """
    position = depth_first_line(problem)
    leader = _leaders(problem, groups)
    whole = _unsplit(problem)
    known = problem.operator_modules or ("",) * problem.n
    paths = [_outermost(path, whole) for path in known]
    first: dict[str, int] = {}
    for i in np.argsort(position).tolist():
        first.setdefault(paths[i], int(position[i]))
    places = [first[paths[i]] if paths[i] else int(position[i]) for i in leader.tolist()]
    return _ranked(np.array(places, dtype=np.int64))[groups.group]


def _unsplit(problem: OperatorProblem) -> set[str]:
    """Paths of the modules that are never split."""
    tree = problem.modules
    return set() if tree is None else {m.path for m in tree.modules if m.kind in tree.no_split}


def _outermost(path: str, whole: set[str]) -> str:
    """The outermost module around `path` that is never split, else `path`."""
    parts = path.split(".")
    above = (".".join(parts[:k]) for k in range(1, len(parts)))
    return next((p for p in above if p in whole), path)


def _ranked(places: IntArray) -> IntArray:
    """Equal places one number, in their order from 0."""
    ranks: IntArray = np.unique(places, return_inverse=True)[1]
    return ranks


def _leaders(problem: OperatorProblem, groups: Groups) -> IntArray:
    """The costliest operator of every group; the first among equals."""
    finite = np.isfinite(problem.compute_s)
    cost = np.where(finite, problem.compute_s, 0.0).sum(axis=1) / finite.sum(axis=1)
    order = np.lexsort((np.arange(problem.n), -cost, groups.group))
    _, at = np.unique(groups.group[order], return_index=True)
    leaders: IntArray = order[at]
    return leaders


def depth_first_line(problem: OperatorProblem) -> IntArray:
    """Shape (n,), place of every operator in a topological order that goes depth first.

    From the sinks back, the longest way first: what is needed late (a transposed weight) stands
    right before its first reader, where first in, first out would have it at the beginning.
    """
    top = problem.topology
    reader = np.repeat(np.arange(problem.n), np.diff(top.in_offsets))
    source = problem.tensor_producer[top.in_tensors]
    depth = _depths(top.order, top.in_offsets, source)
    source = source[np.lexsort((-depth[source], reader))]
    return np.argsort(_postorder(top.order, top.in_offsets, source, top.out_offsets))


def first_places(problem: OperatorProblem, groups: Groups) -> IntArray:
    """Shape (groups,): where the first operator of each group stands in a depth-first line."""
    position = depth_first_line(problem)
    first = np.full(len(groups.allowed), problem.n)
    np.minimum.at(first, groups.group, position)
    return first


@njit_cached
def _depths(order: IntArray, in_offsets: IntArray, source: IntArray) -> IntArray:
    depth = np.zeros(len(order), dtype=np.int64)
    for i in order:
        for a in range(in_offsets[i], in_offsets[i + 1]):
            depth[i] = max(depth[i], depth[source[a]] + 1)
    return depth


@njit_cached
def _postorder(
    order: IntArray, in_offsets: IntArray, source: IntArray, out_offsets: IntArray
) -> IntArray:
    n = len(order)
    line = np.empty(n, dtype=np.int64)
    following = in_offsets[:n].copy()
    met = np.zeros(n, dtype=np.bool_)
    stack = np.empty(n + 1, dtype=np.int64)
    count = 0
    # Roots: first the operators that make nothing, then all that none of them needs.
    for r in range(2 * n):
        root = order[r % n]
        if met[root] or (r < n and out_offsets[root] < out_offsets[root + 1]):
            continue
        met[root] = True
        stack[0] = root
        top = 1
        while top > 0:
            i = stack[top - 1]
            # `following` is where the depth-first search goes on in an operator's inputs.
            if following[i] < in_offsets[i + 1]:
                q = source[following[i]]
                following[i] += 1
                if not met[q]:
                    met[q] = True
                    stack[top] = q
                    top += 1
            else:
                line[count] = i
                count += 1
                top -= 1
    return line
