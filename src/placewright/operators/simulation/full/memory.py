"""Bytes held by devices during a full simulation, compiled.

Every copy of a tensor counts its readers that have not ended: ``home_readers`` where it is made
(its producer, consumers there, outgoing transfers, and views made there that are still held),
``copy_readers`` where it is received. At zero its bytes are released.
"""

from __future__ import annotations

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_internal
from placewright.operators.simulation.full.state import Layout


@njit_internal
def change_held(w: IntArray, x: FloatArray, o: Layout, d: int, change: int, now: float) -> None:
    """Change the bytes held from `now` on; a level counts once time has passed over it (M4)."""
    # `peak` is of levels that lasted; changes at one instant add up before they are looked at.
    if now > x[o.changed_s + d]:
        w[o.peak + d] = max(w[o.peak + d], w[o.held + d])
        x[o.changed_s + d] = now
    w[o.held + d] += change


@njit_inline
def _transfer_to(w: IntArray, o: Layout, k: int, d: int) -> int:
    """The transfer of tensor `k` to device `d`; there is one."""
    # One per device at most: a short search, and no table of t * m.
    e = w[o.first_transfer + k]
    while w[o.transfer_target + e] != d:
        e += 1
    return e  # type: ignore[no-any-return]


@njit_inline
def _readers_at(w: IntArray, o: Layout, place: IntArray, k: int, d: int) -> int:
    """Where in ``w`` the readers of the copy of tensor `k` on device `d` are counted."""
    if place[w[o.producer + k]] == d:
        return o.home_readers + k
    return o.copy_readers + _transfer_to(w, o, k, d)


@njit_internal
def count_views(w: IntArray, o: Layout, place: IntArray) -> None:
    """Count every view as a reader of its base (rule M5)."""
    for a in range(o.shared):
        k = w[o.views + a]
        # Its producer reads the base, so that there is a copy of the base on its device.
        w[_readers_at(w, o, place, w[o.alias + k], place[w[o.producer + k]])] += 1


@njit_internal
def _release_viewed(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, k: int, d: int, now: float
) -> None:
    """A view of tensor `k` on device `d` has no reader left; `k` may be a view itself."""
    while k >= 0:
        at = _readers_at(w, o, place, k, d)
        w[at] -= 1
        if w[at] > 0:
            return
        home = place[w[o.producer + k]] == d
        change_held(w, x, o, d, -w[(o.home_bytes if home else o.kept_bytes) + k], now)
        # Only where `k` is made can it be a view itself; what was received has bytes of its own.
        k = w[o.alias + k] if home else -1


@njit_internal
def release_home(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, k: int, now: float
) -> None:
    """Count one reader less of tensor `k` where it is made; a view releases its base."""
    w[o.home_readers + k] -= 1
    if w[o.home_readers + k] == 0:
        d = place[w[o.producer + k]]
        change_held(w, x, o, d, -w[o.home_bytes + k], now)
        if o.shared > 0:
            _release_viewed(w, x, o, place, w[o.alias + k], d, now)


@njit_internal
def release_inputs(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, i: int, now: float
) -> None:
    """Operator `i` has ended and reads its inputs no more."""
    d = place[i]
    for a in range(w[o.in_offsets + i], w[o.in_offsets + i + 1]):
        k = w[o.in_tensors + a]
        if place[w[o.producer + k]] == d:
            release_home(w, x, o, place, k, now)
            continue
        e = _transfer_to(w, o, k, d)
        w[o.copy_readers + e] -= 1
        if w[o.copy_readers + e] == 0:
            change_held(w, x, o, d, -w[o.kept_bytes + k], now)
