"""Before the full simulation, compiled: priorities, transfers of the placement, empty queues."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_internal
from placewright.operators.queues.heaps import push
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.inputs import DONE, NO_KERNEL, NO_LINK, Mode


@njit_inline
def transfer_s(x: FloatArray, o: Layout, k: int, source: int, target: int) -> float:
    """Seconds that tensor `k` holds the channel from `source` to `target` (rule C2)."""
    pair = source * o.m + target
    return x[o.latency_s + pair] + x[o.tensor_bytes + k] * x[o.seconds_per_byte + pair]  # type: ignore[no-any-return]


@njit_inline
def channel_of(w: IntArray, o: Layout, place: IntArray, e: int) -> int:
    """The channel of transfer `e`."""
    source = place[w[o.producer + w[o.transfer_tensor + e]]]
    return w[o.channel + source * o.m + w[o.transfer_target + e]]  # type: ignore[no-any-return]


@njit_internal
def rank_upward(w: IntArray, x: FloatArray, o: Layout, place: IntArray) -> None:
    """Set the priorities of rule O2: minus the upward rank, so that the least comes first."""
    for at in range(o.n - 1, -1, -1):
        i = w[o.order + at]
        here = place[i]
        # Operators against the topological order: ranks of all readers are there.
        tail = 0.0
        for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
            k = w[o.out_tensors + a]
            for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
                j = w[o.consumers + b]
                path = -x[o.priority + j]
                if place[j] != here:
                    path += transfer_s(x, o, k, here, place[j])
                tail = max(tail, path)
        x[o.priority + i] = -(x[o.compute_s + i * o.m + here] + tail)


@njit_inline
def _comes_before(x: FloatArray, o: Layout, i: int, j: int) -> bool:
    """Whether operator `i` comes before `j` in the order (rule O3)."""
    a, b = x[o.priority + i], x[o.priority + j]
    return a < b or (a == b and i < j)


@njit_internal
def list_transfers(w: IntArray, x: FloatArray, o: Layout, place: IntArray) -> int:
    """Number the transfers: each tensor once per other device that reads it (rule C1).

    Also finds the best reader of each (rule C4), and counts the readers of every copy (rule M2).
    """
    for d in range(o.m):
        w[o.last_transfer + d] = -1
    count = 0
    for k in range(o.t):
        source = place[w[o.producer + k]]
        first = count
        home_readers = 1  # the producer itself
        w[o.first_transfer + k] = first
        for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
            j = w[o.consumers + b]
            target = place[j]
            if target == source:
                home_readers += 1
                continue
            e = w[o.last_transfer + target]
            # Transfers of earlier tensors have lower numbers: `last_transfer` need not be cleared.
            if e >= first:  # this tensor goes to `target` already
                w[o.copy_readers + e] += 1
                if _comes_before(x, o, j, w[o.best_reader + e]):
                    w[o.best_reader + e] = j
                continue
            w[o.last_transfer + target] = count
            w[o.transfer_tensor + count], w[o.transfer_target + count] = k, target
            w[o.best_reader + count], w[o.copy_readers + count] = j, 1
            if w[o.channel + source * o.m + target] < 0:
                w[o.failed_item] = count
                return NO_LINK
            home_readers += 1  # the transfer reads the tensor where it is made
            count += 1
        w[o.home_readers + k] = home_readers
    w[o.first_transfer + o.t] = count
    w[o.transfer_count] = count
    return DONE


@njit_inline
def _fill(w: IntArray, begin: int, size: int, value: int) -> None:
    for at in range(begin, begin + size):
        w[at] = value


@njit_inline
def reset(w: IntArray, x: FloatArray, o: Layout, place: IntArray) -> int:
    """Empty the device queues, sized for this placement; hold resident bytes (rule M1)."""
    _fill(w, o.ready_base, o.m + 1, 0)
    _fill(w, o.ready_count, o.m, 0)
    _fill(w, o.held, o.m, 0)
    for i in range(o.n):
        d = place[i]
        if not np.isfinite(x[o.compute_s + i * o.m + d]):
            w[o.failed_item] = i
            return NO_KERNEL
        # Counts by device, one place later, become begins below.
        w[o.ready_base + d + 1] += 1
        w[o.held + d] += w[o.resident_bytes + i]
        w[o.waiting + i] = w[o.in_offsets + i + 1] - w[o.in_offsets + i]
    for d in range(o.m):
        w[o.ready_base + d + 1] += w[o.ready_base + d]
        w[o.peak + d] = w[o.held + d]
        w[o.running + d] = -1
        x[o.changed_s + d] = 0.0
    w[o.event_count] = w[o.touched_count] = w[o.finished] = 0
    return DONE


@njit_inline
def reset_channels(w: IntArray, o: Layout, place: IntArray) -> None:
    """Empty the channel queues, sized for this placement's transfers."""
    _fill(w, o.request_base, o.channels + 1, 0)
    _fill(w, o.request_count, o.channels, 0)
    _fill(w, o.channel_busy, o.channels, 0)
    _fill(w, o.is_touched, o.channels, 0)
    for e in range(w[o.transfer_count]):
        w[o.request_base + channel_of(w, o, place, e) + 1] += 1
    for channel in range(o.channels):
        w[o.request_base + channel + 1] += w[o.request_base + channel]


@njit_inline
def push_ready(w: IntArray, x: FloatArray, o: Layout, d: int, i: int) -> None:
    """Operator `i` is ready on device `d`."""
    push(w, o.ready_queue + w[o.ready_base + d], w[o.ready_count + d], x, o.priority, i)
    w[o.ready_count + d] += 1


@njit_inline
def fill_queues(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, order: IntArray
) -> None:
    """Queue what has no inputs; in order, the whole sequence of every device."""
    for at in range(o.n):
        i = order[at] if mode.in_order else at
        d = place[i]
        if mode.in_order:
            w[o.ready_queue + w[o.ready_base + d] + w[o.ready_count + d]] = i
            w[o.ready_count + d] += 1
        elif w[o.waiting + i] == 0:
            push_ready(w, x, o, d, i)
    if mode.in_order:
        _fill(w, o.ready_count, o.m, 0)  # from now on: how many have started
