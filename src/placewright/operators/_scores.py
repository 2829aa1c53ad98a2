"""Value and bytes over of placements, compiled: what searches and batches ask the judge for."""

from __future__ import annotations

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.compiled import lean, released
from placewright.operators import _kernels as kernels
from placewright.operators._board import Layout
from placewright.operators._modes import Mode
from placewright.operators._swift import Swift
from placewright.operators._swift_play import UNSURE, play


@lean
def score(
    s: Swift,
    w: IntArray,
    x: FloatArray,
    o: Layout,
    mode: Mode,
    throughput: bool,
    place: IntArray,
    order: IntArray,
    load_s: FloatArray,
) -> tuple[float, int]:
    """Value and bytes over; ``inf`` and 0 where a placement cannot be played.

    `mode.memory` asks for bytes. They are counted over time only where all that ever comes to a
    device would not fit together. `load_s` is scratch of shape (m,).
    """
    if not throughput and not mode.serial and not (mode.memory and crowded(w, o, place)):
        value = play(s, mode, place, order)
        if value != UNSURE:
            return value, 0
    if kernels.run(w, x, o, mode, place, order) != kernels.DONE:
        return np.inf, 0
    over = kernels.over_bytes(w, o) if mode.memory else 0
    if not throughput:
        return kernels.makespan(x, o), over
    kernels.loads(w, x, o, place, load_s)
    value = 0.0
    for d in range(o.m):
        value = max(value, load_s[d])
    return value, over


@lean
def crowded(w: IntArray, o: Layout, place: IntArray) -> bool:
    """Whether all that lives on a device or ever comes to it might be more than its memory."""
    for d in range(o.m):
        w[o.held + d] = 0
        w[o.best + d] = -1
    for i in range(o.n):
        w[o.held + place[i]] += w[o.resident_bytes + i]
    for k in range(o.t):
        size, home = w[o.kept_bytes + k], place[w[o.producer + k]]
        w[o.held + home] += size
        w[o.best + home] = k
        for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
            d = place[w[o.consumers + b]]
            if w[o.best + d] != k:
                w[o.best + d] = k
                w[o.held + d] += size
    full = False
    for d in range(o.m):
        full = full or w[o.held + d] > w[o.memory_bytes + d]
    return full


@released
def run_many(
    s: Swift,
    w: IntArray,
    x: FloatArray,
    o: Layout,
    mode: Mode,
    throughput: bool,
    placements: IntArray,
    order: IntArray,
    value_s: FloatArray,
    violation_bytes: IntArray,
) -> None:
    """`score` for every row."""
    load_s = np.zeros(o.m)
    for row in range(len(placements)):
        value_s[row], violation_bytes[row] = score(
            s, w, x, o, mode, throughput, placements[row], order, load_s
        )
