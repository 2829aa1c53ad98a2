"""When devices and channels are busy: slots sorted by time, in pieces of at most `SLOTS`.

A gap is searched from the first slot that ends after the operator is ready, between any two slots
and before the first::

    a row in two pieces    start_s |  0   4   9 |   | 20  25      gaps: 2-4, 7-9, 12-20, 22-25,
                           end_s   |  2   7  12 |   | 22  30      from 30 on

A new slot moves those of its own piece only, and a piece whose gaps are all too short is passed by
as a whole: with a million operators on a few devices a row that is one piece takes most of the
time of a list schedule.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_internal

SLOTS = 128
"""In a full piece, which the next slot divides in two."""

_FIRST_ROOM = 4


@by_reference
class Timelines(NamedTuple):
    """Busy slots of several rows: one for each device or channel.

    Attributes
    ----------
    start_s, end_s
        Shape (p, SLOTS): the slots of every piece; the first `size` are in use.
    size
        Shape (p,): slots of every piece.
    piece, last_s, unfit_s
        The pieces of all rows, those of a row together and by time; for each the end of its last
        slot, and a time that fits into no gap before one of its slots.
    first, room, pieces
        Shape (r,): where in `piece` a row begins, for how many it has room, how many it has.
    spare, used
        Pieces that no row has; shape (2,): how many these are, and how many places of `piece` are
        taken.
    """

    start_s: FloatArray
    end_s: FloatArray
    size: IntArray
    piece: IntArray
    last_s: FloatArray
    unfit_s: FloatArray
    first: IntArray
    room: IntArray
    pieces: IntArray
    spare: IntArray
    used: IntArray


def timelines(rows: int, slots: int, passing: int = 0) -> Timelines:
    """Empty rows that may have `slots` together, and never more.

    All pieces that they can need are there from the beginning: two neighbours have more than half
    of `SLOTS` together, or are made one. Memory of pieces that are not used costs nothing.

    `passing`: how many of the slots any row may have for a while.
    """
    count = rows + 4 * slots // SLOTS + 2
    # A row without room for one more piece goes to the end, with twice the room: all of them take
    # four places for each piece that a row ever has at once.
    places = _FIRST_ROOM * rows + 4 * (2 * rows + 4 * (slots + rows * passing) // SLOTS + 1)
    piece = np.repeat(np.arange(rows), _FIRST_ROOM)
    return Timelines(
        np.empty((count, SLOTS)),
        np.empty((count, SLOTS)),
        np.zeros(count, np.int64),
        np.concatenate([piece, np.zeros(places - len(piece), np.int64)]),
        np.full(places, -np.inf),
        np.full(places, np.inf),
        np.arange(rows) * _FIRST_ROOM,
        np.full(rows, _FIRST_ROOM),
        np.ones(rows, np.int64),
        np.arange(rows, count),
        np.array([count - rows, rows * _FIRST_ROOM]),
    )


@njit_internal
def gap(t: Timelines, row: int, ready_s: float, took_s: float) -> tuple[float, int, int]:
    """Earliest start from `ready_s` on; the row's piece, and the place there, of the new slot."""
    p, first, last = _piece(t, row, ready_s), t.first[row], t.pieces[row] - 1
    k = t.piece[first + p]
    x, at = _slot(t, k, ready_s), ready_s
    while x < t.size[k] and at + took_s > t.start_s[k, x]:
        at = max(at, t.end_s[k, x])
        x += 1
    while x == t.size[k] and p < last:
        p += 1
        while p < last and took_s >= t.unfit_s[first + p]:
            p += 1
        k, at, x = t.piece[first + p], t.last_s[first + p - 1], 0
        while x < t.size[k] and at + took_s > t.start_s[k, x]:
            at = t.end_s[k, x]
            x += 1
        if x == t.size[k]:
            t.unfit_s[first + p] = took_s
    return at, p, x


@njit_internal
def _piece(t: Timelines, row: int, after_s: float) -> int:
    """The first piece of a row whose last slot ends after a time, else the last piece."""
    first, low, high, step = t.first[row], 0, t.pieces[row] - 1, 1
    # Most times are near the end.
    while high - step > 0 and t.last_s[first + high - step] > after_s:
        high -= step
        step *= 2
    low = max(0, high - step)
    while low < high:
        middle = (low + high) >> 1
        if t.last_s[first + middle] > after_s:
            high = middle
        else:
            low = middle + 1
    return low  # type: ignore[no-any-return]


@njit_internal
def _slot(t: Timelines, k: int, after_s: float) -> int:
    """The first slot of a piece that ends after a time, else how many there are."""
    low, high = 0, t.size[k]
    while low < high:
        middle = (low + high) >> 1
        if t.end_s[k, middle] > after_s:
            high = middle
        else:
            low = middle + 1
    return low


@njit_internal
def insert(t: Timelines, row: int, p: int, x: int, start_s: float, end_s: float) -> None:
    """Put a slot where `gap` says."""
    k = t.piece[t.first[row] + p]
    if t.size[k] == SLOTS:
        half = _halve(t, row, p)
        if x > SLOTS // 2:
            p, k, x = p + 1, half, x - SLOTS // 2
    if x == t.size[k]:  # what lies before it may be long
        t.last_s[t.first[row] + p], t.unfit_s[t.first[row] + p] = end_s, np.inf
    for y in range(t.size[k], x, -1):
        t.start_s[k, y], t.end_s[k, y] = t.start_s[k, y - 1], t.end_s[k, y - 1]
    t.start_s[k, x], t.end_s[k, x] = start_s, end_s
    t.size[k] += 1


@njit_internal
def _halve(t: Timelines, row: int, p: int) -> int:
    """Move the later half of a full piece into a new one behind it, and name that."""
    if t.pieces[row] == t.room[row]:
        _double_room(t, row)
    t.used[0] -= 1
    first, half = t.first[row], t.spare[t.used[0]]
    for q in range(t.pieces[row], p + 1, -1):
        _copy(t, first + q - 1, first + q)
    _copy(t, first + p, first + p + 1)
    t.piece[first + p + 1] = half
    t.pieces[row] += 1
    k, kept = t.piece[first + p], SLOTS // 2
    t.last_s[first + p] = t.end_s[k, kept - 1]
    for x in range(kept, SLOTS):
        t.start_s[half, x - kept], t.end_s[half, x - kept] = t.start_s[k, x], t.end_s[k, x]
    t.size[k], t.size[half] = kept, SLOTS - kept
    return half  # type: ignore[no-any-return]


@njit_internal
def _double_room(t: Timelines, row: int) -> None:
    first, t.first[row] = t.first[row], t.used[1]
    for q in range(t.pieces[row]):
        _copy(t, first + q, t.first[row] + q)
    t.room[row] *= 2
    t.used[1] += t.room[row]


@njit_internal
def _copy(t: Timelines, source: int, target: int) -> None:
    t.piece[target] = t.piece[source]
    t.last_s[target], t.unfit_s[target] = t.last_s[source], t.unfit_s[source]


@njit_internal
def insert_joined(t: Timelines, row: int, p: int, x: int, start_s: float, end_s: float) -> None:
    """As `insert`; slots that touch become one, which keeps rows short.

    Not where operators may take no time at all: they fit between slots that touch.
    """
    k, before_p = t.piece[t.first[row] + p], p if x > 0 or p == 0 else p - 1
    j = t.piece[t.first[row] + before_p]
    y = x - 1 if j == k else t.size[j] - 1
    before = y >= 0 and t.end_s[j, y] == start_s
    after = x < t.size[k] and t.start_s[k, x] == end_s
    # Both neighbours touch: the operator closes the gap and the later slot disappears.
    if before:
        t.end_s[j, y] = t.end_s[k, x] if after else end_s
        t.last_s[t.first[row] + before_p] = t.end_s[j, t.size[j] - 1]
        if after:
            _drop(t, row, p, x)
    elif after:
        t.start_s[k, x] = start_s
    else:
        insert(t, row, p, x, start_s, end_s)


@njit_internal
def remove(t: Timelines, row: int, start_s: float, end_s: float) -> None:
    """Take a slot of these times away; of equal ones it does not matter which."""
    p = _piece(t, row, start_s)
    k = t.piece[t.first[row] + p]
    x = _slot(t, k, start_s)
    if start_s == end_s:  # the last slot that does not end later
        if x == 0:
            p -= 1
            k = t.piece[t.first[row] + p]
            x = t.size[k]
        x -= 1
    t.unfit_s[t.first[row] + p] = np.inf
    if p + 1 < t.pieces[row]:
        t.unfit_s[t.first[row] + p + 1] = np.inf
    _drop(t, row, p, x)


@njit_internal
def _drop(t: Timelines, row: int, p: int, x: int) -> None:
    """Take a slot out; a piece that is small then becomes one with a neighbour that is small."""
    first = t.first[row]
    k = t.piece[first + p]
    t.size[k] -= 1
    for y in range(x, t.size[k]):
        t.start_s[k, y], t.end_s[k, y] = t.start_s[k, y + 1], t.end_s[k, y + 1]
    t.last_s[first + p] = t.end_s[k, t.size[k] - 1] if t.size[k] > 0 else -np.inf
    last = t.pieces[row] - 1
    if p < last and t.size[k] + t.size[t.piece[first + p + 1]] <= SLOTS // 2:
        _merge(t, row, p)
    elif p > 0 and t.size[k] + t.size[t.piece[first + p - 1]] <= SLOTS // 2:
        _merge(t, row, p - 1)
    elif t.size[k] == 0 and last > 0:
        _forget(t, row, p)


@njit_internal
def _merge(t: Timelines, row: int, p: int) -> None:
    """Put the slots of the next piece behind those of piece `p`."""
    at = t.first[row] + p
    k, j = t.piece[at], t.piece[at + 1]
    for y in range(t.size[j]):
        t.start_s[k, t.size[k] + y], t.end_s[k, t.size[k] + y] = t.start_s[j, y], t.end_s[j, y]
    if t.size[j] > 0:
        t.last_s[at] = t.last_s[at + 1]
    t.size[k] += t.size[j]
    t.unfit_s[at] = max(t.unfit_s[at], t.unfit_s[at + 1])
    _forget(t, row, p + 1)


@njit_internal
def _forget(t: Timelines, row: int, p: int) -> None:
    """Take a piece from its row."""
    first = t.first[row]
    t.spare[t.used[0]] = t.piece[first + p]
    t.used[0] += 1
    t.pieces[row] -= 1
    for q in range(p, t.pieces[row]):
        _copy(t, first + q + 1, first + q)
