"""Transfers of a placement, compiled: part of the judge's general play."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import inlined, inner
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.modes import DONE, NO_LINK


@inlined
def move_time(w: IntArray, x: FloatArray, o: Layout, k: int, source: int, target: int) -> float:
    """Seconds that tensor `k` holds the channel from `source` to `target`."""
    pair = source * o.m + target
    return x[o.latency_s + pair] + x[o.tensor_bytes + k] * x[o.seconds_per_byte + pair]  # type: ignore[no-any-return]


@inlined
def lane_of(w: IntArray, o: Layout, place: IntArray, e: int) -> int:
    """The channel of move `e`."""
    source = place[w[o.producer + w[o.move_tensor + e]]]
    return w[o.channel + source * o.m + w[o.move_target + e]]  # type: ignore[no-any-return]


@inlined
def _comes_before(x: FloatArray, o: Layout, i: int, j: int) -> bool:
    a, b = x[o.priority + i], x[o.priority + j]
    return a < b or (a == b and i < j)


@inlined
def _linked(w: IntArray, x: FloatArray, o: Layout, source: int, target: int) -> bool:
    pair = source * o.m + target
    finite = np.isfinite(x[o.latency_s + pair] + x[o.seconds_per_byte + pair])
    return w[o.channel + pair] >= 0 and finite  # type: ignore[no-any-return]


@inner
def list_moves(w: IntArray, x: FloatArray, o: Layout, place: IntArray) -> int:
    """Every (tensor, other device) once, with its best consumer there; and count the readers."""
    for d in range(o.m):
        w[o.best + d] = -1
    moves = 0
    for k in range(o.t):
        source = place[w[o.producer + k]]
        first = moves
        readers = 1
        w[o.first_move + k] = first
        for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
            j = w[o.consumers + b]
            target = place[j]
            if target == source:
                readers += 1
                continue
            e = w[o.best + target]
            if e >= first:
                w[o.move_refs + e] += 1
                if _comes_before(x, o, j, w[o.move_best + e]):
                    w[o.move_best + e] = j
                continue
            w[o.best + target] = moves
            w[o.move_tensor + moves], w[o.move_target + moves] = k, target
            w[o.move_best + moves], w[o.move_refs + moves] = j, 1
            if not _linked(w, x, o, source, target):
                w[o.culprit] = moves
                return NO_LINK
            readers += 1
            moves += 1
        w[o.refs + k] = readers
    w[o.first_move + o.t] = moves
    w[o.moves] = moves
    return DONE
