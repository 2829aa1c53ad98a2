"""The judge's event loop, compiled.

`run` simulates one placement on a `placewright.operators.simulation.full.state`: ``w`` holds what
is whole, ``x`` what is real, ``o`` where each part begins. What is played is said by
`placewright.operators.judge`; ``tests/operators/reference_judge.py`` says it again in slow, plain
Python and must agree to the last bit.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import inlined, lean
from placewright.operators.simulation.full.memory import hold, share_copies
from placewright.operators.simulation.full.moves import list_moves, move_time
from placewright.operators.simulation.full.parallel import play_parallel
from placewright.operators.simulation.full.serial import play_serial
from placewright.operators.simulation.full.setup import fill_queues, rank_upward, reset, reset_lanes
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.modes import DONE, NO_KERNEL, NO_LINK, STUCK, Mode

__all__ = [
    "DONE",
    "NO_KERNEL",
    "NO_LINK",
    "STUCK",
    "Mode",
    "largest_load",
    "makespan",
    "over_bytes",
    "run",
]


@lean
def run(w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, order: IntArray) -> int:
    """Play one placement; the answer stands on the board.

    `order` is a permutation, or empty for the upward rank under this placement. Returns `DONE` or
    what went wrong; the culprit, a move or an operator, is ``w[o.culprit]``.
    """
    if len(order) == 0:
        rank_upward(w, x, o, place)
    else:
        for at in range(o.n):
            x[o.priority + order[at]] = at
    code = reset(w, x, o, place)
    if code == DONE:
        code = list_moves(w, x, o, place)
    if code != DONE:
        return code
    if mode.memory:
        share_copies(w, o, place)
    if mode.serial:
        play_serial(w, x, o, mode, place, order)
    else:
        reset_lanes(w, o, place)
        fill_queues(w, x, o, mode, place, order)
        play_parallel(w, x, o, mode, place)
    for d in range(o.m):
        hold(w, x, o, d, 0, np.inf)
    return DONE if w[o.finished] == o.n else _stuck(w, o)


@lean
def makespan(x: FloatArray, o: Layout) -> float:
    """End of the last operator; to be called after `run`."""
    last = 0.0
    for i in range(o.n):
        last = max(last, x[o.end_s + i])
    return last


@lean
def over_bytes(w: IntArray, o: Layout) -> int:
    """Bytes over the devices' memories, summed; to be called after `run`."""
    total = 0
    for d in range(o.m):
        total += max(0, w[o.peak + d] - w[o.memory_bytes + d])
    return total


@lean
def largest_load(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, load_s: FloatArray
) -> float:
    """Seconds per sample of the busiest device: compute, and every transfer on both its ends.

    Where passes do not mix, what the busiest takes in each, added up. Needs no play before it;
    `load_s` is scratch of shape (m,).
    """
    if o.passes == 1:
        return _largest(w, x, o, place, load_s, -1)
    first = _largest(w, x, o, place, load_s, 0)
    return first + _largest(w, x, o, place, load_s, 1)


@inlined
def _largest(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, load_s: FloatArray, only: int
) -> float:
    """The largest load of the first pass (0), of the second (1), or of all there is (-1)."""
    for d in range(o.m):
        load_s[d], w[o.best + d] = 0.0, -1
    for i in range(o.n):
        if only < 0 or w[o.later + i] == only:
            load_s[place[i]] += x[o.compute_s + i * o.m + place[i]]
    for k in range(o.t):
        if only >= 0 and w[o.later + w[o.producer + k]] != only:
            continue
        source = place[w[o.producer + k]]
        for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
            target = place[w[o.consumers + b]]
            if target != source and w[o.best + target] != k:
                w[o.best + target] = k
                took = move_time(w, x, o, k, source, target)
                load_s[source] += took
                load_s[target] += took
    largest = 0.0
    for d in range(o.m):
        largest = max(largest, load_s[d])
    return largest


@inlined
def _stuck(w: IntArray, o: Layout) -> int:
    """Name the first operator that waits forever."""
    for i in range(o.n - 1, -1, -1):
        if w[o.waiting + i] > 0:
            w[o.culprit] = i
    return STUCK
