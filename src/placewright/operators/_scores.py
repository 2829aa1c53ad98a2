"""Value and bytes over of placements, compiled: what searches and batches ask the judge for."""

from __future__ import annotations

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.compiled import inner, lean, released
from placewright.operators import _kernels as kernels
from placewright.operators._board import Layout
from placewright.operators._modes import Mode
from placewright.operators._swift import Swift
from placewright.operators._swift_play import UNSURE, play, play_seated, sit


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
    if _story_not_needed(w, o, mode, throughput, place):
        value = play(s, mode, place, order)
        if value != UNSURE:
            return value, 0
    return _general_score(w, x, o, mode, throughput, place, order, load_s)


@inner
def _story_not_needed(
    w: IntArray, o: Layout, mode: Mode, throughput: bool, place: IntArray
) -> bool:
    """Whether the makespan is all that is asked for."""
    return not throughput and not mode.serial and not (mode.memory and crowded(w, o, place))


@inner
def _general_score(
    w: IntArray,
    x: FloatArray,
    o: Layout,
    mode: Mode,
    throughput: bool,
    place: IntArray,
    order: IntArray,
    load_s: FloatArray,
) -> tuple[float, int]:
    """`score` by the general play."""
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
        w[o.held + home] += w[o.home_bytes + k]
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
    """`score` for every row; as many as there are seats are played side by side."""
    load_s, seats = np.zeros(o.m), len(s.left)
    seated = np.zeros(seats, dtype=np.int64)
    none = int(np.int64(0))  # with a literal all would be compiled once more
    count = none
    for row in range(len(placements)):
        violation_bytes[row] = 0
        if _story_not_needed(w, o, mode, throughput, placements[row]):
            sit(s, mode, placements[row], order, count)
            seated[count] = row
            count += 1
        else:
            value_s[row], violation_bytes[row] = _general_score(
                w, x, o, mode, throughput, placements[row], order, load_s
            )
        if count == seats or row + 1 == len(placements):
            play_seated(s, mode, count)
            for number in range(count):
                at = seated[number]
                value_s[at] = s.last_s[number]
                if s.last_s[number] == UNSURE:
                    value_s[at], violation_bytes[at] = _general_score(
                        w, x, o, mode, throughput, placements[at], order, load_s
                    )
            count = none
