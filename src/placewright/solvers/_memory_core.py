"""The irreducible part of a PBQP with memory: a small PBQP under many knapsack rows.

A row is one moment at which the limit can bind. Moments at which another one needs at least
as much, option by option, and has no more room are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached, njit_internal
from placewright.solvers._memory_draft import Draft
from placewright.solvers._pbqp_work import Arrays

REMEMBERED = 24
"""A moment is compared with this many of the moments kept before it."""

MOST_COMPARED = 300_000_000
"""Moments times options beyond which moments are compared with the next one only."""


class Loads(NamedTuple):
    """Usage of nodes over the rows, as runs of rows on which it is the same.

    Node i has the runs ``first[i]`` to ``first[i + 1]``, apart from each other and ascending: run
    p covers the rows ``low[p] <= r < high[p]``, with the usages ``use[block[p]]`` and following,
    one per option. Runs are few where rows are many: a problem of 34,932 nodes and 6,238 rows needs
    1 MB, as a table 720 MB.
    """

    room: IntArray
    first: IntArray
    low: IntArray
    high: IntArray
    block: IntArray
    use: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """What is left to decide: nodes ``nodes[i]`` of the draft; `moment[r]` is the time of row r."""

    arrays: Arrays
    loads: Loads
    nodes: IntArray
    moment: IntArray
    constant: float


def core_of(d: Draft, limit: int) -> Core:
    """The live nodes of a draft.

    Raises `InfeasibleError`: what every assignment uses is above the limit already; says when and
    by how much.
    """
    nodes = np.flatnonzero(np.array(d.live, dtype=np.bool_))
    size = np.array([len(d.cost[i]) for i in nodes.tolist()], dtype=np.int64)
    start = np.concatenate([[0], np.cumsum(size)])
    # Lines of `base` are (live_from, live_until, amount), whatever is chosen.
    base = np.array(d.base, dtype=np.int64).reshape(-1, 3)
    table, use = _spans(d, nodes, base)
    moments, room = _moments(table, use, start, limit)
    return Core(
        _arrays(d, nodes, start), _loads(d, nodes, moments, room), nodes, moments, d.constant
    )


def _arrays(d: Draft, nodes: IntArray, start: IntArray) -> Arrays:
    number = {int(i): k for k, i in enumerate(nodes)}
    edges = [(i, j) for i in number for j in d.edges[i] if number[i] < number[j]]
    pool = [d.edges[i][j].ravel() for i, j in edges]
    sizes = np.array([len(p) for p in pool], dtype=np.int64)
    return Arrays(
        start,
        np.concatenate([np.zeros(0), *(d.cost[i] for i in number)]),
        np.array([(number[i], number[j]) for i, j in edges], dtype=np.int64).reshape(-1, 2),
        np.cumsum(sizes) - sizes,
        np.concatenate([np.zeros(0), *pool]),
    )


def _spans(d: Draft, nodes: IntArray, base: IntArray) -> tuple[IntArray, IntArray]:
    """Lines (node or -1, live_from, live_until, where its usages begin), and the usages."""
    lines, use = [], [base[:, 2]]
    at = len(base)
    if len(base):
        # The amounts of `base` come first in the usages, one each.
        whole = np.full(len(base), -1)
        lines.append(np.stack([whole, base[:, 0], base[:, 1], np.arange(at)], axis=1))
    for k, i in enumerate(nodes.tolist()):
        count, options = d.use[i].shape
        begins = at + options * np.arange(count)
        lines.append(np.column_stack([np.full(count, k), d.moments[i], begins]))
        use.append(d.use[i].ravel())
        at += count * options
    table = np.concatenate([np.zeros((0, 4), np.int64), *lines]).astype(np.int64)
    return table, np.concatenate(use).astype(np.int64)


def _moments(
    table: IntArray, use: IntArray, start: IntArray, limit: int
) -> tuple[IntArray, IntArray]:
    """Moments that can bind, none of which is covered by a near one, and their room."""
    times = np.unique(table[:, 1:3])
    by_birth = np.argsort(table[:, 1], kind="stable")
    by_death = np.argsort(table[:, 2], kind="stable")
    compare = len(times) * int(start[-1]) <= MOST_COMPARED
    kept, room, worst = _sweep(table, use, start, limit, times, by_birth, by_death, compare)
    if worst >= 0:
        at, least = int(times[worst]), int(-room[worst])
        raise InfeasibleError(
            "no assignment fits in memory",
            where=f"moment {at}",
            by=f"the least possible usage is {limit + least}, {least} above the limit {limit}",
            hint=f"raise usage_limit by {least}",
        )
    return times[kept], room[kept]


@njit_cached
def _sweep(
    table: IntArray,
    use: IntArray,
    start: IntArray,
    limit: int,
    times: IntArray,
    by_birth: IntArray,
    by_death: IntArray,
    compare: bool,
) -> tuple[IntArray, IntArray, int]:
    """Walk through time. Moments to keep, room at all, the moment most above the limit or -1.

    A moment is covered by the next one where nothing ends in between, and, if `compare`, by any
    of the `REMEMBERED` before it that need as much of every option.
    """
    # By option, what it uses now; the last place is for minus the room, so that `_covers` compares
    # both in one loop. `most`: by node, its largest usage now; their sum is `highest`.
    now = np.zeros(start[-1] + 1, np.int64)
    most = np.zeros(len(start), np.int64)
    recent = np.zeros((REMEMBERED if compare else 0, start[-1] + 1), np.int64)
    whose = np.full(REMEMBERED, -1, np.int64)
    keep, room = np.zeros(len(times), np.bool_), np.zeros(len(times), np.int64)
    live_from = dead = slot = 0
    worst, left, highest = -1, limit, 0
    for t in range(len(times)):
        # Ends before beginnings: intervals are half-open.
        while dead < len(table) and table[by_death[dead], 2] <= times[t]:
            left, highest = _apply(table, use, start, now, most, by_death[dead], -1, left, highest)
            dead += 1
        while live_from < len(table) and table[by_birth[live_from], 1] <= times[t]:
            left, highest = _apply(
                table, use, start, now, most, by_birth[live_from], 1, left, highest
            )
            live_from += 1
        room[t] = left
        if left < 0 and (worst < 0 or left < room[worst]):
            worst = t
        # Nothing that can be chosen overflows here.
        if highest <= left:
            continue
        # Nothing ends before the next moment, which then needs as much at least.
        if t + 1 < len(times) and (dead == len(table) or table[by_death[dead], 2] > times[t + 1]):
            continue
        if not compare:
            keep[t] = True
            continue
        now[-1] = -left
        covered = False
        for s in range(REMEMBERED):
            covered = covered or (whose[s] >= 0 and _covers(recent[s], now))
        if covered:
            continue
        # The other way round: this moment may cover ones that were kept.
        for s in range(REMEMBERED):
            if whose[s] >= 0 and _covers(now, recent[s]):
                keep[whose[s]], whose[s] = False, -1
        # A ring: the oldest is forgotten, but stays kept.
        keep[t], whose[slot] = True, t
        recent[slot] = now
        slot = (slot + 1) % REMEMBERED
    return np.flatnonzero(keep), room, worst


@njit_internal
def _covers(a: IntArray, b: IntArray) -> bool:
    k = 0
    while k < len(a) and a[k] >= b[k]:
        k += 1
    return k == len(a)


@njit_internal
def _apply(
    table: IntArray,
    use: IntArray,
    start: IntArray,
    now: IntArray,
    most: IntArray,
    line: int,
    sign: int,
    left: int,
    highest: int,
) -> tuple[int, int]:
    """Let a span begin or end; the room that is left and the sum of the nodes' largest usages."""
    # A node that joined others may live in several spans at once, hence the largest of the sum.
    node, at = table[line, 0], table[line, 3]
    if node < 0:
        return left - sign * use[at], highest
    largest = 0
    for a in range(start[node], start[node + 1]):
        now[a] += sign * use[at + a - start[node]]
        largest = max(largest, now[a])
    highest += largest - most[node]
    most[node] = largest
    return left, highest


def _loads(d: Draft, nodes: IntArray, moments: IntArray, room: IntArray) -> Loads:
    """Usages on the rows, without the runs that are zero."""
    none = np.zeros(0, np.int64)
    first, lows, highs, uses = [0], [none], [none], [none]
    for i in nodes.tolist():
        low, high, use = _runs(np.searchsorted(moments, d.moments[i]), d.use[i])
        first.append(first[-1] + len(low))
        lows.append(low)
        highs.append(high)
        uses.append(use.ravel())
    counts = np.diff(first)
    width = np.repeat([len(d.cost[i]) for i in nodes.tolist()], counts).astype(np.int64)
    return Loads(
        room,
        np.array(first),
        np.concatenate(lows),
        np.concatenate(highs),
        np.cumsum(width) - width,
        np.concatenate(uses),
    )


def _runs(spans: IntArray, use: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Spans (shape (s, 2), may overlap) added up: begin and end of every run, usages on it."""
    edges, where = np.unique(spans, return_inverse=True)
    where = where.reshape(-1, 2)
    # Differences at the edges, added up: spans that begin and end at one row cancel.
    steps = np.zeros((len(edges), use.shape[1]), np.int64)
    np.add.at(steps, where[:, 0], use)
    np.add.at(steps, where[:, 1], -use)
    changes = steps.any(axis=1)
    edges, lines = edges[changes], np.cumsum(steps[changes], axis=0)
    there = np.flatnonzero(lines.any(axis=1))
    return edges[there], edges[there + 1], lines[there]


@njit_cached
def priced(arrays: Arrays, loads: Loads, price: FloatArray) -> FloatArray:
    """Node costs with every row's usage at its price."""
    cost = arrays.cost.copy()
    # Running total, so that a run costs two look-ups however many rows it covers.
    total = np.zeros(len(price) + 1)
    for r in range(len(price)):
        total[r + 1] = total[r] + price[r]
    for i in range(len(arrays.start) - 1):
        for p in range(loads.first[i], loads.first[i + 1]):
            each, at = total[loads.high[p]] - total[loads.low[p]], loads.block[p]
            for a in range(arrays.start[i], arrays.start[i + 1]):
                cost[a] += each * loads.use[at]
                at += 1
    return cost


def rent(loads: Loads, price: FloatArray) -> float:
    """What all room costs at these prices.

    From the running total that `priced` takes differences of: what rounding makes of a row's price
    is then the same on both sides, and the bound stays one.
    """
    return float(np.diff(np.cumsum(price), prepend=0.0) @ loads.room)


@njit_cached
def loaded(arrays: Arrays, loads: Loads, choice: IntArray) -> IntArray:
    """What `choice` uses on every row."""
    # Differences at the ends of runs, summed once.
    steps = np.zeros(len(loads.room) + 1, np.int64)
    for i in range(len(arrays.start) - 1):
        for p in range(loads.first[i], loads.first[i + 1]):
            used = loads.use[loads.block[p] + choice[i]]
            steps[loads.low[p]] += used
            steps[loads.high[p]] -= used
    return np.cumsum(steps)[:-1]


@njit_cached
def expected(arrays: Arrays, loads: Loads, share: FloatArray) -> FloatArray:
    """What options use on every row where each is taken to a share."""
    steps = np.zeros(len(loads.room) + 1)
    for i in range(len(arrays.start) - 1):
        for p in range(loads.first[i], loads.first[i + 1]):
            used, at = 0.0, loads.block[p]
            for a in range(arrays.start[i], arrays.start[i + 1]):
                used += share[a] * loads.use[at]
                at += 1
            steps[loads.low[p]] += used
            steps[loads.high[p]] -= used
    return np.cumsum(steps)[:-1]
