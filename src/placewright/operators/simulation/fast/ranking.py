"""The order in which ready operators are chosen, compiled: upward rank and its sorting."""

from __future__ import annotations

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import index, inlined, inner
from placewright.operators.queues.heaps import pop, push
from placewright.operators.simulation.fast.state import FastState, Seat

MOST_IN_CELL = 24
"""Operators of nearly one rank that are sorted one by one."""

SMALLEST_WIDTH = 1e-280
"""Seconds below which ranks are not told apart by dividing them."""


@inlined
def rank_upward(s: FastState, handle: Seat, placement: IntArray) -> float:
    """Operators on their devices and their ranks, minus the longest way to the end from there.

    Returns the least, that of the first to be chosen; -inf where a device cannot run one.
    """
    least = 0.0
    for at in range(s.n - 1, -1, -1):
        i = s.topological[index(at)]
        took_s, facts = put(s, handle, i, index(placement[i])), s.facts[i]
        here = index(placement[i] * s.m)
        tail = 0.0
        for e in range(facts.first, facts.last):
            edge = s.edges[e]
            j = edge.consumer
            pair = s.pairs[here + s.ops[handle.op + j].place]
            way = pair.latency_s + edge.bytes * pair.seconds_per_byte - s.rank[j]
            tail = max(tail, way)
        rank = -(took_s + tail)
        s.rank[i] = rank
        least = min(least, rank)
    return least


@inlined
def put(s: FastState, handle: Seat, i: int, d: int) -> float:
    """An operator on a device, where nothing has come to it yet; its seconds there."""
    took_s = s.compute_s[index(i * s.m + d)]
    op = s.ops[handle.op + i]
    op.ready_s = 0.0
    op.took_s = took_s
    op.place = d
    op.waiting = s.facts[i].inputs
    s.devices[handle.device + d].end += 1
    return took_s  # type: ignore[no-any-return]


@inlined
def line_up(s: FastState, handle: Seat, least: float) -> None:
    """`ranked` by (priority, operator): into n cells of equal width, then within each."""
    n, ops = s.n, handle.op
    _into_cells(s, handle, least, _scale(n, -least))
    begin = 0
    for cell in range(n):
        end = s.cell_end[cell]
        if end - begin > MOST_IN_CELL:
            _sort_many(s, ops, begin, end)
        begin = end
    for at in range(1, n):
        _settle(s, ops, at)


@inlined
def _into_cells(s: FastState, handle: Seat, least: float, per_second: float) -> None:
    """`ranked` by cell, within a cell by operator; `cell_end` says where each ends."""
    n = s.n
    for cell in range(n + 1):
        s.cell_end[cell] = 0
    for i in range(n):
        cell = min(n - 1, int((s.rank[i] - least) * per_second))
        s.cell[i] = cell
        s.cell_end[cell + 1] += 1
    for cell in range(n):
        s.cell_end[cell + 1] += s.cell_end[cell]
    for i in range(n):
        at = s.cell_end[s.cell[i]]
        s.ranked[handle.op + at] = i
        s.ranked_key[at] = s.rank[i]
        s.cell_end[s.cell[i]] = at + 1


@inner
def _sort_many(s: FastState, ops: int, begin: int, end: int) -> None:
    """One crowded cell: into cells of its own; what crowds again passes through a heap."""
    count, least, most = end - begin, s.ranked_key[begin], s.ranked_key[begin]
    for at in range(begin, end):
        least = min(least, s.ranked_key[at])
        most = max(most, s.ranked_key[at])
    if most == least:
        return
    _into_cells_again(s, ops, begin, end, least, _scale(count, most - least))
    first = begin
    for cell in range(count):
        last = begin + s.crowd_end[cell]
        if last - first > MOST_IN_CELL:
            _sort_by_heap(s, ops, first, last)
        first = last


@inlined
def _scale(cells: int, width: float) -> float:
    """Cells per second; none where the width is next to nothing."""
    return cells / width if width > SMALLEST_WIDTH else 0.0


@inlined
def _into_cells_again(
    s: FastState, ops: int, begin: int, end: int, least: float, per_second: float
) -> None:
    """As `_into_cells`, for a part of `ranked`; `crowd_end` counts from its begin."""
    count = end - begin
    for cell in range(count + 1):
        s.crowd_end[cell] = 0
    for at in range(begin, end):
        cell = min(count - 1, int((s.ranked_key[at] - least) * per_second))
        s.cell[at] = cell
        s.crowd_end[cell + 1] += 1
        s.early[ops + at] = s.ranked[ops + at]
    for cell in range(count):
        s.crowd_end[cell + 1] += s.crowd_end[cell]
    for at in range(begin, end):
        to = s.crowd_end[s.cell[at]]
        i = s.early[ops + at]
        s.ranked[ops + begin + to] = i
        s.ranked_key[begin + to] = s.rank[i]
        s.crowd_end[s.cell[at]] = to + 1


@inlined
def _sort_by_heap(s: FastState, ops: int, begin: int, end: int) -> None:
    """`early` is idle before a play."""
    for at in range(begin, end):
        push(s.early, ops, at - begin, s.rank, 0, s.ranked[ops + at])
    for at in range(begin, end):
        i = pop(s.early, ops, end - at, s.rank, 0)
        s.ranked[ops + at] = i
        s.ranked_key[at] = s.rank[i]


@inlined
def _settle(s: FastState, ops: int, at: int) -> None:
    """Sink the operator at `at` to its place among those before it; equals stay as they are."""
    i, mine = s.ranked[ops + at], s.ranked_key[at]
    while at > 0 and s.ranked_key[at - 1] > mine:
        s.ranked[ops + at] = s.ranked[ops + at - 1]
        s.ranked_key[at] = s.ranked_key[at - 1]
        at -= 1
    s.ranked[ops + at] = i
    s.ranked_key[at] = mine


@inlined
def follow(s: FastState, handle: Seat, placement: IntArray, order: IntArray) -> float:
    """Operators on their devices, `ranked` as an order has it; the most seconds of one."""
    longest = 0.0
    for at in range(len(order)):
        i = index(order[index(at)])
        s.ranked[handle.op + index(at)] = i
        longest = max(longest, put(s, handle, i, index(placement[i])))
    return longest
