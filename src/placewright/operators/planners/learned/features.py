"""Groups of operators that a learned policy places as one, and features of groups and graphs.

Graphs are read as joined chains, with degrees, fractal dimensions, positions and costs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_cached, njit_internal
from placewright.operators.costs import groups_of
from placewright.operators.planners.learned.planner import softmax
from placewright.operators.problem import OperatorProblem

How = Literal["colocation", "chains", "modules"]


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """Operators in groups, numbered in topological order of their first operators.

    Attributes
    ----------
    group
        Shape (n,), group of every operator.
    allowed
        Shape (count, m), devices that every member can use; at least one per group.
    work_s
        Shape (count,), seconds on the fastest allowed devices.
    """

    group: IntArray
    allowed: BoolArray
    work_s: FloatArray

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.allowed)

    @property
    def uniform(self) -> FloatArray:
        """Shape (count, m), the chance of each allowed device, all alike."""
        return softmax(np.zeros(self.allowed.shape), self.allowed)

    def placements(self, devices: IntArray) -> IntArray:
        """Devices of groups, shape (k, count), as devices of operators, shape (k, n)."""
        rows: IntArray = np.atleast_2d(devices)[:, self.group]
        return rows

    def devices(self, problem: OperatorProblem, placement: IntArray) -> IntArray:
        """Shape (count,): where most of a group's work is in a placement of operators."""
        share = np.zeros(self.allowed.shape)
        least = np.where(np.isfinite(problem.compute_s), problem.compute_s, np.inf).min(axis=1)
        np.add.at(share, (self.group, placement), least + 1e-12)
        chosen: IntArray = np.where(self.allowed, share, -1.0).argmax(axis=1)
        return chosen

    def adjacency_bytes(self, problem: OperatorProblem) -> FloatArray:
        """Shape (count, count): bytes from group to group, a tensor once per reading group."""
        tensor = problem.consumed
        to = self.group[problem.consumers]
        pairs = np.unique(np.stack([tensor, to]), axis=1)
        source = self.group[problem.tensor_producer[pairs[0]]]
        between = np.zeros((self.count, self.count))
        np.add.at(between, (source, pairs[1]), problem.tensor_bytes[pairs[0]])
        np.fill_diagonal(between, 0.0)
        return between


def group_operators(problem: OperatorProblem, how: How = "modules", at_most: int = 128) -> Grouping:
    """Group by colocation, and further.

    Raises `InfeasibleError`: a colocation group that no device can run.

    Parameters
    ----------
    how
        ``colocation``: no further. ``chains``: v joins its only successor s where v is the only
        predecessor of s. ``modules``: chains, then operators of one module; as ``chains`` where
        modules are not known.
    at_most
        Groups; neighbours in topological order are joined, evenly by work, until there are no
        more. More remain where groups have no device in common.
    """
    own = groups_of(problem)
    join = _Union(own.allowed.copy())
    if how != "colocation":
        _join_lone_successors(problem, own.group, join)
    if how == "modules" and any(problem.operator_modules):
        _join_modules(problem, own.group, join, at_most)
    share = -1.0 if how == "colocation" else 0.0  # below zero nothing without work is joined
    return _evened(problem, join.roots()[own.group], join.allowed, at_most, share)


class _Union:
    """Disjoint sets with the devices that all members can use."""

    def __init__(self, allowed: BoolArray) -> None:
        self.allowed = allowed
        self.above = list(range(len(allowed)))

    def root(self, x: int) -> int:
        while self.above[x] != x:
            self.above[x] = self.above[self.above[x]]
            x = self.above[x]
        return x

    def join(self, a: int, b: int) -> bool:
        """Make one set of two where a device can run both."""
        a, b = self.root(a), self.root(b)
        both = self.allowed[a] & self.allowed[b]
        if a == b or not both.any():
            return a == b
        self.above[max(a, b)] = min(a, b)
        self.allowed[min(a, b)] = both
        return True

    def roots(self) -> IntArray:
        return np.array([self.root(x) for x in range(len(self.above))], dtype=np.int64)


def _join_lone_successors(problem: OperatorProblem, group: IntArray, join: _Union) -> None:
    """Operators with one successor that has one predecessor."""
    edges = np.unique(np.stack([problem.consumed_from, problem.consumers]), axis=1)
    successors = np.bincount(edges[0], minlength=problem.n)
    predecessors = np.bincount(edges[1], minlength=problem.n)
    alone = (successors[edges[0]] == 1) & (predecessors[edges[1]] == 1)
    for v, s in edges[:, alone].T.tolist():
        join.join(int(group[v]), int(group[s]))


def _join_modules(problem: OperatorProblem, group: IntArray, join: _Union, at_most: int) -> None:
    """Operators of one module; of the deepest level of modules that is not too many."""
    paths = [path.split(".") if path else [] for path in problem.operator_modules]
    deepest = max(map(len, paths))
    for depth in range(deepest, 0, -1):
        names = [".".join(path[:depth]) for path in paths]
        if len(Counter(names)) <= at_most or depth == 1:
            break
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if name:
            join.join(first.setdefault(name, int(group[i])), int(group[i]))


def _evened(
    problem: OperatorProblem, label: IntArray, allowed: BoolArray, at_most: int, joined: float
) -> Grouping:
    """Number the groups topologically, and join neighbours where there are too many."""
    roots, group = np.unique(label, return_inverse=True)
    first = np.full(len(roots), problem.n)
    np.minimum.at(first, group, problem.topology.position)
    least = np.where(problem.allowed(), problem.compute_s, np.inf).min(axis=1)
    work = np.bincount(group, least, len(roots)).astype(np.float64)
    order = np.argsort(first, kind="stable").tolist()
    number, devices = _runs(order, work, allowed[roots], joined)
    share = work.sum() / at_most
    while len(devices) > at_most:
        fewer = _runs(order, work, allowed[roots], share)
        if len(fewer[1]) == len(devices) and share > work.sum():
            break  # no two neighbours have a device in common
        (number, devices), share = fewer, share * 1.2
    numbered = number[group]
    work = np.bincount(numbered, least, len(devices)).astype(np.float64)
    return Grouping(numbered, np.stack(devices), work)


def _runs(
    order: list[int], work: FloatArray, allowed: BoolArray, share: float
) -> tuple[IntArray, list[BoolArray]]:
    """Neighbours in `order` joined up to `share` of work each, where a device can run both."""
    number, devices, filled = np.empty(len(order), dtype=np.int64), [allowed[order[0]]], 0.0
    for g in order:
        both = devices[-1] & allowed[g]
        if g == order[0] or (both.any() and filled + work[g] <= share):
            devices[-1], filled = both, filled + work[g]
        else:
            devices.append(allowed[g])
            filled = float(work[g])
        number[g] = len(devices) - 1
    return number, devices


VERSION = "groups 1"
"""Version of `group_features`; changes with the meaning of any column."""

KINDS = 16
"""Columns over which operator kinds are spread by a hash: the same for every graph."""

SHAPES, DIMENSIONS, NEIGHBOURS = 5, 5, 20
"""Columns of a published operator feature, after its type: shapes, of so many dimensions each, and
neighbours."""


def group_features(problem: OperatorProblem, grouping: Grouping, start: IntArray) -> FloatArray:
    """Shape (groups, columns): times, bytes, kinds, degrees, position, and a start's devices.

    Columns are centred and scaled; the last m are the devices of `start`, shape (n,), one-hot.
    """
    p, group, count = problem, grouping.group, grouping.count
    finite = np.where(np.isfinite(p.compute_s), p.compute_s, np.nanmax(_finite(p.compute_s)))
    work = np.stack([np.bincount(group, finite[:, d], count) for d in range(p.m)], axis=1)
    mean = work.mean(axis=1)
    between = grouping.adjacency_bytes(p)
    sizes = np.stack(
        [between.sum(axis=0), between.sum(axis=1), np.bincount(group, p.resident_bytes, count)],
        axis=1,
    )
    degree = np.stack([(between > 0).sum(axis=0), (between > 0).sum(axis=1)], axis=1)
    position = np.arange(count) / max(1, count - 1)
    waves = [f(math.pi * 2**k * position) for k in range(5) for f in (np.sin, np.cos)]
    columns = [
        np.log1p(mean / (mean.mean() + 1e-30)),
        *(work / (mean[:, None] + 1e-30)).T,
        *np.log1p(sizes).T,
        *np.log1p(degree).T,
        np.log1p(np.bincount(group, minlength=count)),
        position,
        *np.log1p(_kinds(p, group, count)).T,
        *waves,
    ]
    scaled = standardised(np.stack(columns, axis=1), least=1e-12)
    hot = (grouping.devices(p, start)[:, None] == np.arange(p.m)).astype(np.float64)
    return np.concatenate([scaled, hot], axis=1)


def hp3c_features(problem: OperatorProblem) -> FloatArray:
    """Shape (colocation groups, 46): type number, shapes padded with -1, signed neighbours.

    Of a group's first operator. Neighbours are operators' numbers plus one, negative for producers.
    Kinds and shapes that are not known are type 0 and all -1.
    """
    p, first = problem, groups_of(problem).first
    kinds = list(p.operator_kinds) or [""] * p.n
    number = {kind: k for k, kind in enumerate(sorted(set(kinds)))}
    signed: list[list[int]] = [[] for _ in range(p.n)]
    for a, b in zip(p.consumed_from.tolist(), p.consumers.tolist(), strict=True):
        signed[b].append(-(a + 1))
        signed[a].append(b + 1)
    rows = []
    for i in first.tolist():
        shape = _dimensions(p, i)
        near = signed[i][:NEIGHBOURS]
        rows.append([number[kinds[i]], *shape, *near, *[0] * (NEIGHBOURS - len(near))])
    return np.array(rows, dtype=np.float64)


def _dimensions(p: OperatorProblem, i: int) -> list[int]:
    """Five shapes of five dimensions, of which one is known."""
    known = list(p.output_shapes[i])[:DIMENSIONS] if p.output_shapes else []
    return [*known, *[-1] * (SHAPES * DIMENSIONS - len(known))]


def _kinds(p: OperatorProblem, group: IntArray, count: int) -> FloatArray:
    """Shape (count, KINDS): operators of a group by hashed kind."""
    found = np.zeros((count, KINDS))
    if p.operator_kinds:
        column = np.array([crc32(kind.encode()) % KINDS for kind in p.operator_kinds])
        np.add.at(found, (group, column), 1.0)
    return found


def _finite(values: FloatArray) -> FloatArray:
    kept: FloatArray = np.where(np.isfinite(values), values, 0.0)
    return kept


SHAPE_RANK = 4
"""Dimensions of an output shape that are kept; shorter shapes are padded with zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class CoarseGraph:
    """Operators that are placed as one, and the tensors between them.

    Nodes are numbered by the topological position of their first operator.

    Attributes
    ----------
    node
        Shape (n,), node of every operator.
    first
        Shape (k,), first operator of every node in topological order.
    allowed
        Shape (k, m), devices that every member can use.
    source, target, bytes
        Shape (e,), pairs of nodes that a tensor goes between and how many bytes, each pair once.
    """

    node: IntArray
    first: IntArray
    allowed: BoolArray
    source: IntArray
    target: IntArray
    bytes: FloatArray

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.first)


def coarsen(problem: OperatorProblem) -> CoarseGraph:
    """Join colocation groups, and every operator to its only successor.

    HSDAG (arXiv 2405.14185, section 2.2): in topological order, v joins s where s is the only
    successor of v and v the only predecessor of s. Departure: not where no device can run both.
    """
    groups = groups_of(problem)
    node, allowed = np.array(groups.group), np.array(groups.allowed)
    source, target = problem.consumed_from, problem.consumers
    size, order = problem.tensor_bytes[problem.consumed], problem.topology.order
    pair = np.unique(np.stack([source, target], axis=1), axis=0)
    node = _join_chains(order, node, allowed, pair)
    found, first_at, inverse = np.unique(node[order], return_index=True, return_inverse=True)
    rank = np.empty(len(found), dtype=np.int64)
    rank[np.argsort(first_at)] = np.arange(len(found))
    number = np.empty(problem.n, dtype=np.int64)
    number[order] = rank[inverse]
    a, b = number[source], number[target]
    between = a != b
    ends, which = np.unique(np.stack([a[between], b[between]], axis=1), axis=0, return_inverse=True)
    moved = np.bincount(which.ravel(), size[between], minlength=len(ends)).astype(np.float64)
    first = order[np.sort(first_at)]
    of_node = allowed[found[np.argsort(first_at)]]
    return CoarseGraph(number, first, of_node, ends[:, 0], ends[:, 1], moved)


@njit_cached
def _join_chains(order: IntArray, node: IntArray, allowed: BoolArray, pair: IntArray) -> IntArray:
    """Union of nodes along chains; `allowed` of a union becomes what all its members allow."""
    n = len(order)
    into, out, only = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1)
    for e in range(len(pair)):
        if pair[e, 0] != pair[e, 1]:
            out[pair[e, 0]] += 1
            into[pair[e, 1]] += 1
            only[pair[e, 0]] = pair[e, 1]
    above = np.arange(len(allowed))
    for v in order:
        s = only[v]
        if out[v] != 1 or into[s] != 1:
            continue
        a, b = _root(above, node[v]), _root(above, node[s])
        if a != b and (allowed[a] & allowed[b]).any():
            above[b] = a
            allowed[a] &= allowed[b]
    joined = np.empty(n, np.int64)
    for v in range(n):
        joined[v] = _root(above, node[v])
    return joined


@njit_cached
def best_edge_groups(
    allowed: BoolArray, source: IntArray, target: IntArray, scores: FloatArray, least: float
) -> IntArray:
    """Every node keeps its best edge, if that scores above `least`: connected components.

    Graph parsing of Song et al., arXiv 2402.14393; ties go to the earlier edge. Departure: an edge
    is not kept where no device can run all that it would join. Groups are numbered by first node.
    """
    k = len(allowed)
    allowed, above, best = allowed.copy(), np.arange(k), np.full(k, -1)
    for e in range(len(source)):
        if scores[e] > least:
            for v in (source[e], target[e]):
                if best[v] < 0 or scores[e] > scores[best[v]]:
                    best[v] = e
    for v in range(k):
        if best[v] < 0:
            continue
        a, b = _root(above, source[best[v]]), _root(above, target[best[v]])
        if a != b and (allowed[a] & allowed[b]).any():
            # The lower number stays the root, so that roots are numbered before their members.
            above[max(a, b)] = min(a, b)
            allowed[min(a, b)] = allowed[a] & allowed[b]
    group, count = np.empty(k, np.int64), 0
    for v in range(k):  # a root is the least of its component
        root = _root(above, v)
        if root == v:
            group[v] = count
            count += 1
        else:
            group[v] = group[root]
    return group


@njit_internal
def _root(above: IntArray, x: int) -> int:
    while above[x] != x:
        # Path halving.
        above[x] = above[above[x]]
        x = above[x]
    return x


def one_hot(values: Sequence[object]) -> FloatArray:
    """Shape (k, different values), columns in the order of first appearance."""
    seen: dict[object, int] = {}
    column = [seen.setdefault(value, len(seen)) for value in values]
    return np.eye(max(1, len(seen)))[column]


def degrees(graph: CoarseGraph) -> tuple[IntArray, IntArray]:
    """Number of predecessors and of successors of every node."""
    k = graph.size
    return np.bincount(graph.target, minlength=k), np.bincount(graph.source, minlength=k)


def fractal_dimension(graph: CoarseGraph) -> FloatArray:
    """Slope of log N(v, r) over log r by least squares, N the nodes within r >= 1 hops of v.

    Hops in either direction, up to the node's eccentricity; zero where that is less than two.
    Breadth-first search from every node: O(k (k + e)).
    """
    ends = np.concatenate([graph.source, graph.target])
    other = np.concatenate([graph.target, graph.source])
    by = np.argsort(ends, kind="stable")
    offsets = np.searchsorted(ends[by], np.arange(graph.size + 1))
    return _fractal(offsets, other[by])


@njit_cached
def _fractal(offsets: IntArray, neighbours: IntArray) -> FloatArray:
    k = len(offsets) - 1
    slope, queue, seen = np.zeros(k), np.empty(k, np.int64), np.full(k, -1)
    for v in range(k):
        seen[v], queue[0], head, tail, radius = v, v, 0, 1, 0
        count, x_sum, y_sum, xx, xy = 0, 0.0, 0.0, 0.0, 0.0
        while head < tail:
            # One ring of the breadth-first search at a time: `tail` counts what is within its
            # radius.
            stop = tail
            while head < stop:
                i = queue[head]
                head += 1
                for a in range(offsets[i], offsets[i + 1]):
                    j = neighbours[a]
                    if seen[j] != v:
                        seen[j] = v
                        queue[tail] = j
                        tail += 1
            if tail > stop:
                radius += 1
                x, y = np.log(radius), np.log(tail)
                count, x_sum, y_sum = count + 1, x_sum + x, y_sum + y
                xx, xy = xx + x * x, xy + x * y
        spread = count * xx - x_sum * x_sum
        if count > 1 and spread > 0:
            slope[v] = (count * xy - x_sum * y_sum) / spread
    return slope


def sinusoids(position: IntArray, width: int = 16) -> FloatArray:
    """Sine and cosine encoding of integers (Vaswani et al., 2017), shape (k, width)."""
    rate = 10000.0 ** (-np.arange(0, width, 2) / width)
    angle = position[:, None] * rate
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def padded_shapes(shapes: Sequence[Sequence[int]]) -> FloatArray:
    """The last `SHAPE_RANK` dimensions of every shape, zeros in front of shorter ones."""
    rows = np.zeros((len(shapes), SHAPE_RANK))
    for row, shape in zip(rows, shapes, strict=True):
        kept = list(shape)[-SHAPE_RANK:]
        if kept:
            row[-len(kept) :] = kept
    return rows


def operator_kinds(problem: OperatorProblem) -> tuple[str, ...]:
    """Kinds of operators, all alike where they are not known."""
    return problem.operator_kinds or ("",) * problem.n


def output_shapes(problem: OperatorProblem) -> tuple[tuple[int, ...], ...]:
    """Output shapes of operators, empty where they are not known."""
    return problem.output_shapes or ((),) * problem.n


def hsdag_features(problem: OperatorProblem, graph: CoarseGraph) -> FloatArray:
    """HSDAG's features of every node, those of its first operator where it has several.

    Kind, in-degree and out-degree in one-hot columns, fractal dimension, sinusoids of the
    topological index, output shape.
    """
    into, out = degrees(graph)
    kinds, shapes = operator_kinds(problem), output_shapes(problem)
    return np.concatenate(
        [
            one_hot([kinds[i] for i in graph.first]),
            one_hot(into.tolist()),
            one_hot(out.tolist()),
            fractal_dimension(graph)[:, None],
            sinusoids(np.arange(graph.size)),
            padded_shapes([shapes[i] for i in graph.first]),
        ],
        axis=1,
    )


def cost_features(problem: OperatorProblem, graph: CoarseGraph) -> FloatArray:
    """Time of every node on every device, bytes it holds, bytes it receives and sends.

    Times are relative to the mean node, bytes are logarithms, all columns of unit spread.
    """
    k, total = graph.size, np.zeros((graph.size, problem.m))
    finite = np.where(np.isfinite(problem.compute_s), problem.compute_s, 0.0)
    np.add.at(total, graph.node, finite)
    held = np.bincount(graph.node, problem.resident_bytes, minlength=k)
    received = np.bincount(graph.target, graph.bytes, minlength=k)
    sent = np.bincount(graph.source, graph.bytes, minlength=k)
    mean_s = max(float(total.mean()), 1e-300)
    columns = np.concatenate(
        [
            np.log1p(total / mean_s),
            np.log1p(np.stack([held, received, sent], axis=1)),
            ~graph.allowed,
        ],
        axis=1,
    )
    return standardised(columns)


def standardised(columns: FloatArray, least: float = 0.0) -> FloatArray:
    """Zero mean and unit spread of every column, but for those of no more than `least`."""
    spread = columns.std(axis=0)
    result: FloatArray = (columns - columns.mean(axis=0)) / np.where(spread > least, spread, 1.0)
    return result
