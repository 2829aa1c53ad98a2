"""The order in which ready operators are chosen, compiled: upward rank and its sorting."""

from __future__ import annotations

from placewright.arrays import IntArray
from placewright.compiled import inlined, lean
from placewright.operators._heaps import pop, push
from placewright.operators._swift import Swift

MOST_IN_CELL = 24
"""Operators of nearly one rank that are sorted one by one; more of them pass through a heap."""


@inlined
def rank_upward(s: Swift) -> None:
    """Priority is minus the longest way to the end under this very placement: least first."""
    m = len(s.next_s)
    for at in range(len(s.topological) - 1, -1, -1):
        i = s.topological[at]
        here = s.place[i] * m
        tail = 0.0
        for e in range(s.first_edge[i], s.first_edge[i + 1]):
            j = s.consumer[e]
            pair = here + s.place[j]
            way = s.latency_s[pair] + s.edge_bytes[e] * s.seconds_per_byte[pair] - s.priority[j]
            tail = max(tail, way)
        s.priority[i] = -(s.took_s[i] + tail)


@inlined
def line_up(s: Swift) -> None:
    """Positions by (priority, operator): into n cells of equal width first, then within each."""
    n = len(s.ranked)
    least, most = s.priority[0], s.priority[0]
    for i in range(n):
        least = min(least, s.priority[i])
        most = max(most, s.priority[i])
    _into_cells(s, n, least, n / (most - least) if most > least else 0.0)
    begin = 0
    for cell in range(n):
        end = s.cell_end[cell]
        if end - begin > MOST_IN_CELL:
            _sort_many(s, begin, end)
        begin = end
    for at in range(1, n):
        _settle(s, at)
    for at in range(n):
        s.position[s.ranked[at]] = at


@inlined
def _into_cells(s: Swift, n: int, least: float, per_second: float) -> None:
    """`ranked` by cell, within a cell by operator; `cell_end` says where each ends."""
    for cell in range(n + 1):
        s.cell_end[cell] = 0
    for i in range(n):
        cell = min(n - 1, int((s.priority[i] - least) * per_second))
        s.cell[i] = cell
        s.cell_end[cell + 1] += 1
    for cell in range(n):
        s.cell_end[cell + 1] += s.cell_end[cell]
    for i in range(n):
        at = s.cell_end[s.cell[i]]
        s.ranked[at] = i
        s.cell_end[s.cell[i]] = at + 1


@lean
def _sort_many(s: Swift, begin: int, end: int) -> None:
    """One crowded cell; `future` is idle before a play."""
    for at in range(begin, end):
        push(s.future, 0, at - begin, s.priority, 0, s.ranked[at])
    for at in range(begin, end):
        s.ranked[at] = pop(s.future, 0, end - at, s.priority, 0)


@inlined
def _settle(s: Swift, at: int) -> None:
    """Sink the operator at `at` to its place among those before it; equals stay as they are."""
    i = s.ranked[at]
    mine = s.priority[i]
    while at > 0 and s.priority[s.ranked[at - 1]] > mine:
        s.ranked[at] = s.ranked[at - 1]
        at -= 1
    s.ranked[at] = i


@inlined
def follow(s: Swift, order: IntArray) -> None:
    """Positions as an order has them."""
    for at in range(len(order)):
        s.ranked[at] = order[at]
        s.position[order[at]] = at
