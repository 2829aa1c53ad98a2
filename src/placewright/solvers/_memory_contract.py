"""Nodes that determine each other become one: the bulk of a sharding problem, compiled.

An edge whose matrix allows exactly one partner for every option, in both directions, ties its
nodes together. Trees of such edges are contracted in one pass: every option of a member is the
image of one option of the tree's root.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, IntArray
from placewright.numerics.njit import njit_cached, njit_internal, njit_no_refcount
from placewright.solvers._pbqp_work import Arrays


class Spans(NamedTuple):
    """Usage of options over time: span s is of ``node[s]``.

    It lasts from ``live_from[s]`` to before ``live_until[s]``.

    Its usages, one per option of the node, are ``use[at[s] : at[s + 1]]``.
    """

    node: IntArray
    live_from: IntArray
    live_until: IntArray
    at: IntArray
    use: IntArray


class Images(NamedTuple):
    """Where nodes and options went: ``node[i]`` (-1: nowhere) and, flat, ``option[a]`` (or -1)."""

    start: IntArray
    node: IntArray
    option: IntArray


@njit_no_refcount
def forbid(arrays: Arrays, allowed: BoolArray) -> bool:
    """Forbid options that some neighbour leaves no partner for; whether any was."""
    changed = False
    for k in range(len(arrays.ends)):
        for side in range(2):
            i, j = arrays.ends[k, side], arrays.ends[k, 1 - side]
            own, other = arrays.start[i], arrays.start[j]
            n, m = arrays.start[i + 1] - own, arrays.start[j + 1] - other
            # Distance in the pool between options of i and between those of j: rows belong to
            # `ends[k, 0]`.
            step, stride = (m, 1) if side == 0 else (1, n)
            for a in range(n):
                if not allowed[own + a]:
                    continue
                found = False
                for b in range(m):
                    at = arrays.matrix[k] + a * step + b * stride
                    found = found or (allowed[other + b] and arrays.pool[at] < np.inf)
                if not found:
                    allowed[own + a] = False
                    changed = True
    return changed


@njit_internal
def partners(arrays: Arrays, partner: IntArray, edge: int) -> bool:
    """Whether `edge` ties its nodes; writes the option of the second end for each of the first."""
    i, j = arrays.ends[edge, 0], arrays.ends[edge, 1]
    n, m = arrays.start[i + 1] - arrays.start[i], arrays.start[j + 1] - arrays.start[j]
    if n != m:
        return False
    for a in range(n):
        partner[a] = -1
        for b in range(m):
            if arrays.pool[arrays.matrix[edge] + a * m + b] < np.inf:
                if partner[a] >= 0:
                    return False
                partner[a] = b
        # A second option with this partner: the tie holds in one direction only.
        for c in range(a):
            if partner[c] == partner[a]:
                return False
        if partner[a] < 0:
            return False
    return True


@njit_cached
def tied(arrays: Arrays) -> tuple[IntArray, IntArray]:
    """Root of every node over the tying edges, and the root's option for every option."""
    n = len(arrays.start) - 1
    root, option = np.arange(n), np.empty(len(arrays.cost), np.int64)
    widest = 0
    for i in range(n):
        widest = max(widest, arrays.start[i + 1] - arrays.start[i])
        for a in range(arrays.start[i], arrays.start[i + 1]):
            option[a] = a - arrays.start[i]
    partner = np.empty(widest, np.int64)
    ties = np.zeros(len(arrays.ends), np.bool_)
    degree = np.zeros(n + 1, np.int64)
    for k in range(len(arrays.ends)):
        ties[k] = partners(arrays, partner, k)
        if ties[k]:
            # Half-edges of tying edges by node, by counting sort: `degree` is counted one place on,
            # so that its running sum is where each node begins.
            degree[arrays.ends[k, 0] + 1] += 1
            degree[arrays.ends[k, 1] + 1] += 1
    first = np.cumsum(degree)
    place, halves = first.copy(), np.empty(first[-1], np.int64)
    for k in range(len(arrays.ends)):
        for side in range(2):
            if ties[k]:
                halves[place[arrays.ends[k, side]]] = 2 * k + side
                place[arrays.ends[k, side]] += 1
    # Depth first through each tree; a tying edge that closes a circle is left to `carry_edges`,
    # which forbids the options whose images disagree.
    seen, queue = np.zeros(n, np.bool_), np.empty(n, np.int64)
    for r in range(n):
        if seen[r]:
            continue
        seen[r], queue[0], size = True, r, 1
        while size:
            size -= 1
            i = queue[size]
            for place_of in range(first[i], first[i + 1]):
                h = halves[place_of]
                j = arrays.ends[h // 2, 1 - h % 2]
                if seen[j]:
                    continue
                seen[j], root[j], queue[size] = True, r, j
                size += 1
                # Again, rather than kept for all edges.
                partners(arrays, partner, h // 2)
                for a in range(arrays.start[j + 1] - arrays.start[j]):
                    here, there = (a, partner[a]) if h % 2 == 0 else (partner[a], a)
                    option[arrays.start[j] + there] = option[arrays.start[i] + here]
    return root, option


@njit_no_refcount
def carry_edges(old: Arrays, to: Images, target: IntArray, swapped: BoolArray, new: Arrays) -> None:
    """Add every old matrix to where its edge went: a new edge, or (target -1) a node's cost."""
    for k in range(len(old.ends)):
        i, j = old.ends[k, 0], old.ends[k, 1]
        u, v = to.node[i], to.node[j]
        # Options of the new second end, which is v unless the edge has turned round.
        width = new.start[v + 1] - new.start[v]
        if swapped[k]:
            width = new.start[u + 1] - new.start[u]
        at = old.matrix[k]
        for a in range(old.start[i], old.start[i + 1]):
            for b in range(old.start[j], old.start[j + 1]):
                p, q, c = to.option[a], to.option[b], old.pool[at]
                at += 1
                if p < 0 or q < 0:
                    continue
                if target[k] < 0:
                    # Both ends are one node now: other pairs cannot be.
                    if p == q:
                        new.cost[new.start[u] + p] += c
                elif swapped[k]:
                    new.pool[new.matrix[target[k]] + q * width + p] += c
                else:
                    new.pool[new.matrix[target[k]] + p * width + q] += c


def mapped(old: Arrays, to: Images, start: IntArray) -> Arrays:
    """The problem after nodes and options went where `to` says; joins parallel edges."""
    cost = np.zeros(start[-1])
    whose = np.repeat(np.arange(len(old.start) - 1), np.diff(old.start))
    there = to.option >= 0
    np.add.at(cost, start[to.node[whose]][there] + to.option[there], old.cost[there])
    ends = to.node[old.ends]
    swapped = ends[:, 0] > ends[:, 1]
    low, high = ends.min(axis=1, initial=len(start)), ends.max(axis=1, initial=0)
    # One key for both directions; keys of a node with itself become no edge but node costs.
    keys, target = np.unique(low * len(start) + high, return_inverse=True)
    kept = keys // len(start) != keys % len(start)
    number = np.where(kept, np.cumsum(kept) - 1, -1)
    pairs = np.stack([keys[kept] // len(start), keys[kept] % len(start)], axis=1)
    size = np.diff(start)
    area = size[pairs[:, 0]] * size[pairs[:, 1]]
    matrix = np.cumsum(area) - area
    new = Arrays(start, cost, pairs, matrix, np.zeros(int(area.sum())))
    carry_edges(old, to, number[target].astype(np.int64), swapped, new)
    return new


def carry_spans(spans: Spans, to: Images, start: IntArray) -> Spans:
    """The spans after nodes and options moved; equal spans of one node are added up."""
    node = to.node[spans.node]
    table = np.stack([node, spans.live_from, spans.live_until], axis=1)
    kept, group = np.unique(table, axis=0, return_inverse=True)
    size = np.diff(start)[kept[:, 0]]
    at = np.concatenate([[0], np.cumsum(size)])
    use = np.zeros(int(at[-1]), np.int64)
    own = np.repeat(np.arange(len(spans.node)), np.diff(spans.at))
    within = np.arange(len(spans.use)) - spans.at[own]
    option = to.option[to.start[spans.node[own]] + within]
    there = option >= 0
    np.add.at(use, at[group.ravel()[own][there]] + option[there], spans.use[there])
    return Spans(kept[:, 0], kept[:, 1], kept[:, 2], at, use)


def restriction(arrays: Arrays) -> tuple[Images, IntArray] | None:
    """Drop options that cannot be; ``None`` where there are none."""
    allowed = arrays.cost < np.inf
    while forbid(arrays, allowed):
        pass
    if allowed.all():
        return None
    n = len(arrays.start) - 1
    before = np.concatenate([[0], np.cumsum(allowed)])
    start = before[arrays.start]
    whose = np.repeat(np.arange(n), np.diff(arrays.start))
    option = np.where(allowed, before[:-1] - start[whose], -1)
    return Images(arrays.start, np.arange(n), option), start


def contraction(arrays: Arrays) -> tuple[Images, IntArray] | None:
    """Contract the trees of tying edges; ``None`` where there are none."""
    root, option = tied(arrays)
    roots = np.flatnonzero(root == np.arange(len(root)))
    if len(roots) == len(root):
        return None
    number = np.full(len(root), -1)
    number[roots] = np.arange(len(roots))
    start = np.concatenate([[0], np.cumsum(np.diff(arrays.start)[roots])])
    return Images(arrays.start, number[root], option), start


def contract(arrays: Arrays, spans: Spans) -> tuple[Arrays, Spans, list[Images]]:
    """Restrict and contract until nothing changes.

    Raises `InfeasibleError` (forbidden entries leave a node no option).
    """
    steps: list[Images] = []
    while True:
        # Restriction first: it makes more edges tie. Every step loses an option or a node, so it
        # ends.
        step = restriction(arrays) or contraction(arrays)
        if step is None:
            return arrays, spans, steps
        images, start = step
        if (np.diff(start) == 0).any():
            raise _stuck(int(np.argmin(np.diff(start))), steps)
        arrays, spans = mapped(arrays, images, start), carry_spans(spans, images, start)
        steps.append(images)


def _stuck(node: int, steps: list[Images]) -> InfeasibleError:
    # By the first node that became it; the step that failed keeps numbers.
    for to in reversed(steps):
        node = int(np.argmax(to.node == node))
    return InfeasibleError(
        "every option of a node is forbidden, by itself or by its neighbours",
        where=f"node {node}",
        hint="costs from 10^18 on forbid; look at the edges of this node",
    )


def original(steps: list[Images], choice: IntArray) -> IntArray:
    """The choice before the steps, from the one after them."""
    for to in reversed(steps):
        chosen = np.zeros(len(to.node), np.int64)
        whose = np.repeat(np.arange(len(to.node)), np.diff(to.start))
        hit = np.flatnonzero(to.option == choice[to.node[whose]])
        chosen[whose[hit]] = hit - to.start[whose[hit]]
        choice = chosen
    return choice


def spans_of(usage: IntArray, start: IntArray, live_from: IntArray, live_until: IntArray) -> Spans:
    """One span for every node that lives."""
    node = np.flatnonzero(live_until > live_from)
    size = np.diff(start)[node]
    at = np.concatenate([[0], np.cumsum(size)])
    index = np.repeat(start[node] - at[:-1], size) + np.arange(at[-1])
    return Spans(node, live_from[node], live_until[node], at, usage[index])
