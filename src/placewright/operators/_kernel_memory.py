"""Bytes held by devices over time, compiled: part of the judge's general play."""

from __future__ import annotations

from placewright.arrays import FloatArray, IntArray
from placewright.compiled import inner
from placewright.operators._board import Layout


@inner
def hold(w: IntArray, x: FloatArray, o: Layout, d: int, change: int, now: float) -> None:
    """Change the bytes held from `now` on; a level counts once time has passed over it."""
    if now > x[o.changed_s + d]:
        w[o.peak + d] = max(w[o.peak + d], w[o.held + d])
        x[o.changed_s + d] = now
    w[o.held + d] += change


@inner
def drop_sender(w: IntArray, x: FloatArray, o: Layout, place: IntArray, k: int, now: float) -> None:
    """One reader less of tensor `k` where it was made."""
    w[o.refs + k] -= 1
    if w[o.refs + k] == 0:
        hold(w, x, o, place[w[o.producer + k]], -w[o.kept_bytes + k], now)


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
