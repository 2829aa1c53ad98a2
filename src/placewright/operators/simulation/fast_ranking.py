"""Order of the operators in the fast simulator, compiled: upward ranks, and sorting by them.

Sorting takes as long as simulating if it compares; ranks are spread over n cells of equal width
instead, and only what shares a cell is compared.
"""

from __future__ import annotations

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import index, njit_inline, njit_internal
from placewright.operators.queues import pop, push
from placewright.operators.simulation.fast_state import FastState, Offsets

MOST_IN_CELL = 24
"""Operators of one cell that are sorted by insertion; more are spread once more."""

SMALLEST_WIDTH = 1e-280
"""Seconds; a range of ranks below it is one cell, since dividing by it might overflow."""


@njit_inline
def rank_upward(s: FastState, base: Offsets, placement: IntArray) -> float:
    """Place all operators and set `rank` to minus their upward rank (rule O2).

    Returns the least, that of the first operator; -inf where a device cannot run one.
    """
    least = 0.0
    for at in range(s.n - 1, -1, -1):
        i = s.topological[index(at)]
        took_s, static = place_operator(s, base, i, index(placement[i])), s.static[i]
        here = index(placement[i] * s.m)
        tail = 0.0
        for e in range(static.first, static.last):
            edge = s.edges[e]
            j = edge.consumer
            pair = s.pairs[here + s.ops[base.op + j].device]
            path = pair.latency_s + edge.bytes * pair.seconds_per_byte - s.rank[j]
            tail = max(tail, path)
        rank = -(took_s + tail)
        s.rank[i] = rank
        least = min(least, rank)
    return least


@njit_inline
def place_operator(s: FastState, base: Offsets, i: int, d: int) -> float:
    """Put an operator on a device, with nothing sent to it yet; returns its seconds there."""
    took_s = s.compute_s[index(i * s.m + d)]
    op = s.ops[base.op + i]
    op.ready_s = 0.0
    op.took_s = took_s
    op.device = d
    op.waiting = s.static[i].inputs
    s.devices[base.device + d].end += 1
    return took_s  # type: ignore[no-any-return]


@njit_inline
def sort_by_rank(s: FastState, base: Offsets, least: float) -> None:
    """Sort `ranked` by (rank, operator): into n cells of equal width, then within each."""
    n, ops = s.n, base.op
    _into_cells(s, base, least, _scale(n, -least))
    begin = 0
    for cell in range(n):
        end = s.cell_end[cell]
        if end - begin > MOST_IN_CELL:
            _sort_many(s, ops, begin, end)
        begin = end
    # Cells are in order and short: one insertion sort over all finishes them, and looks no
    # farther back than a cell. Stable, so that equal ranks stay by operator (rule O3).
    for at in range(1, n):
        _sink(s, ops, at)


@njit_inline
def _into_cells(s: FastState, base: Offsets, least: float, per_second: float) -> None:
    """Sort `ranked` by cell, within a cell by operator; `cell_end` is where each cell ends."""
    n = s.n
    for cell in range(n + 1):
        s.cell_end[cell] = 0
    for i in range(n):
        cell = min(n - 1, int((s.rank[i] - least) * per_second))
        s.cell[i] = cell
        # Counting sort: counts, then begins, which become ends as each cell is filled.
        s.cell_end[cell + 1] += 1
    for cell in range(n):
        s.cell_end[cell + 1] += s.cell_end[cell]
    for i in range(n):
        at = s.cell_end[s.cell[i]]
        s.ranked[base.op + at] = i
        s.ranked_key[at] = s.rank[i]
        s.cell_end[s.cell[i]] = at + 1


@njit_internal
def _sort_many(s: FastState, ops: int, begin: int, end: int) -> None:
    """Sort a crowded cell into cells of its own; what is crowded again goes through a heap."""
    count, least, most = end - begin, s.ranked_key[begin], s.ranked_key[begin]
    for at in range(begin, end):
        least = min(least, s.ranked_key[at])
        most = max(most, s.ranked_key[at])
    # All equal: they stand by operator already, which is their order (rule O3).
    if most == least:
        return
    _into_cells_again(s, ops, begin, end, least, _scale(count, most - least))
    first = begin
    for cell in range(count):
        last = begin + s.subcell_end[cell]
        if last - first > MOST_IN_CELL:
            _sort_by_heap(s, ops, first, last)
        first = last


@njit_inline
def _scale(cells: int, width: float) -> float:
    """Cells per second of rank, 0 for one cell."""
    return cells / width if width > SMALLEST_WIDTH else 0.0


@njit_inline
def _into_cells_again(
    s: FastState, ops: int, begin: int, end: int, least: float, per_second: float
) -> None:
    """As `_into_cells`, for a part of `ranked`; `subcell_end` counts from its begin."""
    count = end - begin
    for cell in range(count + 1):
        s.subcell_end[cell] = 0
    for at in range(begin, end):
        cell = min(count - 1, int((s.ranked_key[at] - least) * per_second))
        s.cell[at] = cell
        s.subcell_end[cell + 1] += 1
        # Copied first, since rows are written where others have not been read.
        s.pending_heap[ops + at] = s.ranked[ops + at]
    for cell in range(count):
        s.subcell_end[cell + 1] += s.subcell_end[cell]
    for at in range(begin, end):
        to = s.subcell_end[s.cell[at]]
        i = s.pending_heap[ops + at]
        s.ranked[ops + begin + to] = i
        s.ranked_key[begin + to] = s.rank[i]
        s.subcell_end[s.cell[at]] = to + 1


@njit_inline
def _sort_by_heap(s: FastState, ops: int, begin: int, end: int) -> None:
    """Sort through `pending_heap`, which is not used before a simulation."""
    for at in range(begin, end):
        push(s.pending_heap, ops, at - begin, s.rank, 0, s.ranked[ops + at])
    for at in range(begin, end):
        i = pop(s.pending_heap, ops, end - at, s.rank, 0)
        s.ranked[ops + at] = i
        s.ranked_key[at] = s.rank[i]


@njit_inline
def _sink(s: FastState, ops: int, at: int) -> None:
    """Sink the operator at `at` to its place among those before it; equals stay as they are."""
    i, mine = s.ranked[ops + at], s.ranked_key[at]
    while at > 0 and s.ranked_key[at - 1] > mine:
        s.ranked[ops + at] = s.ranked[ops + at - 1]
        s.ranked_key[at] = s.ranked_key[at - 1]
        at -= 1
    s.ranked[ops + at] = i
    s.ranked_key[at] = mine


@njit_inline
def follow_order(s: FastState, base: Offsets, placement: IntArray, order: IntArray) -> float:
    """Place all operators, `ranked` in the order given; returns the most seconds of one."""
    longest = 0.0
    for at in range(len(order)):
        i = index(order[index(at)])
        s.ranked[base.op + index(at)] = i
        longest = max(longest, place_operator(s, base, i, index(placement[i])))
    return longest
