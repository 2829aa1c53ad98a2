"""Bytes held by devices over time, compiled: part of the judge's general play."""

from __future__ import annotations

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import inlined, inner
from placewright.operators.simulation.full.state import Layout


@inner
def hold(w: IntArray, x: FloatArray, o: Layout, d: int, change: int, now: float) -> None:
    """Change the bytes held from `now` on; a level counts once time has passed over it."""
    if now > x[o.changed_s + d]:
        w[o.peak + d] = max(w[o.peak + d], w[o.held + d])
        x[o.changed_s + d] = now
    w[o.held + d] += change


@inlined
def _copy_at(w: IntArray, o: Layout, place: IntArray, k: int, d: int) -> int:
    """Where the readers of the copy of tensor `k` on device `d` are counted."""
    if place[w[o.producer + k]] == d:
        return o.refs + k
    e = w[o.first_move + k]
    while w[o.move_target + e] != d:
        e += 1
    return o.move_refs + e  # type: ignore[no-any-return]


@inner
def share_copies(w: IntArray, o: Layout, place: IntArray) -> None:
    """A view counts, until it has no reader left, as a reader of what it is a view of."""
    for a in range(o.shared):
        k = w[o.views + a]
        w[_copy_at(w, o, place, w[o.alias + k], place[w[o.producer + k]])] += 1


@inner
def _let_go(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, k: int, d: int, now: float
) -> None:
    """A view of tensor `k` on device `d` has no reader left; neither may `k`, perhaps a view."""
    while k >= 0:
        at = _copy_at(w, o, place, k, d)
        w[at] -= 1
        if w[at] > 0:
            return
        home = place[w[o.producer + k]] == d
        hold(w, x, o, d, -w[(o.home_bytes if home else o.kept_bytes) + k], now)
        k = w[o.alias + k] if home else -1


@inner
def drop_sender(w: IntArray, x: FloatArray, o: Layout, place: IntArray, k: int, now: float) -> None:
    """One reader less of tensor `k` where it was made; a view lets go of what it is a view of."""
    w[o.refs + k] -= 1
    if w[o.refs + k] == 0:
        d = place[w[o.producer + k]]
        hold(w, x, o, d, -w[o.home_bytes + k], now)
        if o.shared > 0:
            _let_go(w, x, o, place, w[o.alias + k], d, now)


@inner
def drop_inputs(w: IntArray, x: FloatArray, o: Layout, place: IntArray, i: int, now: float) -> None:
    """Operator `i` has ended and reads its inputs no more."""
    d = place[i]
    for a in range(w[o.in_offsets + i], w[o.in_offsets + i + 1]):
        k = w[o.in_tensors + a]
        if place[w[o.producer + k]] == d:
            drop_sender(w, x, o, place, k, now)
            continue
        e = w[o.first_move + k]
        while w[o.move_target + e] != d:
            e += 1
        w[o.move_refs + e] -= 1
        if w[o.move_refs + e] == 0:
            hold(w, x, o, d, -w[o.kept_bytes + k], now)
