"""Before the judge's general play, compiled: priorities and empty queues."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import inlined, inner
from placewright.operators.queues.heaps import push
from placewright.operators.simulation.full.moves import lane_of, move_time
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.modes import DONE, NO_KERNEL, Mode


@inner
def rank_upward(w: IntArray, x: FloatArray, o: Layout, place: IntArray) -> None:
    """Priority is minus the longest way to the end under this very placement: least first."""
    for at in range(o.n - 1, -1, -1):
        i = w[o.order + at]
        here = place[i]
        tail = 0.0
        for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
            k = w[o.out_tensors + a]
            for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
                j = w[o.consumers + b]
                way = -x[o.priority + j]
                if place[j] != here:
                    way += move_time(w, x, o, k, here, place[j])
                tail = max(tail, way)
        x[o.priority + i] = -(x[o.compute_s + i * o.m + here] + tail)


@inlined
def _fill(w: IntArray, begin: int, size: int, value: int) -> None:
    for at in range(begin, begin + size):
        w[at] = value


@inlined
def reset(w: IntArray, x: FloatArray, o: Layout, place: IntArray) -> int:
    """Empty queues sized for this placement; resident bytes held."""
    _fill(w, o.queue_base, o.m + 1, 0)
    _fill(w, o.queue_size, o.m, 0)
    _fill(w, o.held, o.m, 0)
    for i in range(o.n):
        d = place[i]
        if not np.isfinite(x[o.compute_s + i * o.m + d]):
            w[o.culprit] = i
            return NO_KERNEL
        w[o.queue_base + d + 1] += 1
        w[o.held + d] += w[o.resident_bytes + i]
        w[o.waiting + i] = w[o.in_offsets + i + 1] - w[o.in_offsets + i]
    for d in range(o.m):
        w[o.queue_base + d + 1] += w[o.queue_base + d]
        w[o.peak + d] = w[o.held + d]
        w[o.running + d] = -1
        x[o.changed_s + d] = 0.0
    w[o.pending] = w[o.touched] = w[o.finished] = 0
    return DONE


@inlined
def reset_lanes(w: IntArray, o: Layout, place: IntArray) -> None:
    """Empty channel queues sized for this placement's moves."""
    _fill(w, o.lane_base, o.channels + 1, 0)
    _fill(w, o.lane_size, o.channels, 0)
    _fill(w, o.lane_busy, o.channels, 0)
    _fill(w, o.flagged, o.channels, 0)
    for e in range(w[o.moves]):
        w[o.lane_base + lane_of(w, o, place, e) + 1] += 1
    for lane in range(o.channels):
        w[o.lane_base + lane + 1] += w[o.lane_base + lane]


@inlined
def push_ready(w: IntArray, x: FloatArray, o: Layout, d: int, i: int) -> None:
    """An operator is ready on its device."""
    push(w, o.queue + w[o.queue_base + d], w[o.queue_size + d], x, o.priority, i)
    w[o.queue_size + d] += 1


@inlined
def fill_queues(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, order: IntArray
) -> None:
    """In order: each device's whole sequence. Else: what has no inputs."""
    for at in range(o.n):
        i = order[at] if mode.in_order else at
        d = place[i]
        if mode.in_order:
            w[o.queue + w[o.queue_base + d] + w[o.queue_size + d]] = i
            w[o.queue_size + d] += 1
        elif w[o.waiting + i] == 0:
            push_ready(w, x, o, d, i)
    if mode.in_order:
        _fill(w, o.queue_size, o.m, 0)
