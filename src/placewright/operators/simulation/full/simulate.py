"""Full simulator, compiled: start and end of every operator and transfer, and peaks of memory.

The rules are those of docs/reference/simulation.md;
``tests/operators/simulation/reference.py`` follows them in plain Python, to the last bit.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_no_refcount
from placewright.operators.simulation.full.events import simulate_parallel, simulate_serial
from placewright.operators.simulation.full.memory import change_held, count_views
from placewright.operators.simulation.full.setup import (
    fill_queues,
    list_transfers,
    rank_upward,
    reset,
    reset_channels,
    transfer_s,
)
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.inputs import DONE, STUCK, Mode


@njit_no_refcount
def simulate(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, order: IntArray
) -> int:
    """Simulate one placement; times and peaks are in the state afterwards.

    `order` is a permutation, or empty for the upward rank under this placement. Returns `DONE` or
    what went wrong; the operator or transfer that failed is ``w[o.failed_item]``.
    """
    # `priority`, of which the least comes first, is a place in the order or minus the upward rank.
    if len(order) == 0:
        rank_upward(w, x, o, place)
    else:
        for at in range(o.n):
            x[o.priority + order[at]] = at
    code = reset(w, x, o, place)
    if code == DONE:
        code = list_transfers(w, x, o, place)
    if code != DONE:
        return code
    if mode.memory:
        count_views(w, o, place)
    if mode.serial:
        simulate_serial(w, x, o, mode, place, order)
    else:
        reset_channels(w, o, place)
        fill_queues(w, x, o, mode, place, order)
        simulate_parallel(w, x, o, mode, place)
    for d in range(o.m):  # the last level counts as well
        change_held(w, x, o, d, 0, np.inf)
    return DONE if w[o.finished] == o.n else _stuck(w, o)


@njit_inline
def _stuck(w: IntArray, o: Layout) -> int:
    """Name the first operator that waits forever."""
    # From the last to the first: the least index stays (rule P3).
    for i in range(o.n - 1, -1, -1):
        if w[o.waiting + i] > 0:
            w[o.failed_item] = i
    return STUCK


@njit_no_refcount
def makespan(x: FloatArray, o: Layout) -> float:
    """End of the last operator, after `simulate`."""
    last = 0.0
    for i in range(o.n):
        last = max(last, x[o.end_s + i])
    return last


@njit_no_refcount
def over_bytes(w: IntArray, o: Layout) -> int:
    """Bytes over the devices' memories, summed, after `simulate`."""
    total = 0
    for d in range(o.m):
        total += max(0, w[o.peak + d] - w[o.memory_bytes + d])
    return total


@njit_no_refcount
def largest_load(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, load_s: FloatArray
) -> float:
    """Seconds per sample of the busiest device (rules L1 and L4); `load_s` is scratch, shape (m,).

    Needs no simulation before it.
    """
    if o.passes == 1:
        return _largest(w, x, o, place, load_s, -1)
    first = _largest(w, x, o, place, load_s, 0)
    return first + _largest(w, x, o, place, load_s, 1)


@njit_inline
def _largest(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, load_s: FloatArray, only: int
) -> float:
    """The largest load of the first pass (0), of the second (1), or of both together (-1)."""
    for d in range(o.m):
        # `last_transfer` is scratch here: the last tensor that was sent to each device.
        load_s[d], w[o.last_transfer + d] = 0.0, -1
    for i in range(o.n):
        if only < 0 or w[o.second_pass + i] == only:
            load_s[place[i]] += x[o.compute_s + i * o.m + place[i]]
    for k in range(o.t):
        if only >= 0 and w[o.second_pass + w[o.producer + k]] != only:
            continue
        source = place[w[o.producer + k]]
        for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
            target = place[w[o.consumers + b]]
            if target != source and w[o.last_transfer + target] != k:
                w[o.last_transfer + target] = k  # once per target
                took = transfer_s(x, o, k, source, target)
                load_s[source] += took
                load_s[target] += took
    largest = 0.0
    for d in range(o.m):
        largest = max(largest, load_s[d])
    return largest
