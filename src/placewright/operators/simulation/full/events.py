"""The full simulator's event loops, compiled."""

from __future__ import annotations

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_internal
from placewright.operators.queues.heaps import pop, pop_request, push, push_request
from placewright.operators.simulation.full.memory import (
    change_held,
    release_home,
    release_inputs,
)
from placewright.operators.simulation.full.setup import channel_of, push_ready, transfer_s
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.inputs import Mode


@njit_internal
def simulate_parallel(w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray) -> None:
    """Run rounds of rule E3: what ends at one instant, then channels, then devices choose."""
    # Rule E3: the first round starts operators only, nothing has been requested yet.
    _devices_choose(w, x, o, mode, 0.0)
    while w[o.event_count] > 0:
        now = x[o.event_s + w[o.event_queue]]
        # What starts in this round and takes no time ends in another round of the same instant.
        while w[o.event_count] > 0 and x[o.event_s + w[o.event_queue]] == now:
            # Ends at one instant commute: they only request, deliver, and release bytes.
            event = pop(w, o.event_queue, w[o.event_count], x, o.event_s)
            w[o.event_count] -= 1
            if event < o.m:
                _finish_operator(w, x, o, mode, place, event, now)
            else:
                _finish_transfer(w, x, o, mode, place, event - o.m, now)
        _channels_choose(w, x, o, mode, place, now)
        _devices_choose(w, x, o, mode, now)


@njit_internal
def _schedule(w: IntArray, x: FloatArray, o: Layout, event: int, end_s: float) -> None:
    """Something ends at `end_s`."""
    x[o.event_s + event] = end_s
    push(w, o.event_queue, w[o.event_count], x, o.event_s, event)
    w[o.event_count] += 1


@njit_internal
def _start(w: IntArray, x: FloatArray, o: Layout, mode: Mode, d: int, i: int, now: float) -> None:
    """Device `d` starts operator `i`; its outputs take room from now on (rule M2)."""
    x[o.start_s + i] = now
    x[o.end_s + i] = now + x[o.compute_s + i * o.m + d]
    if mode.memory:
        for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
            change_held(w, x, o, d, w[o.home_bytes + w[o.out_tensors + a]], now)


@njit_internal
def _deliver(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, k: int, d: int
) -> None:
    """Tensor `k` is on device `d`: its consumers there wait for one tensor less."""
    for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
        j = w[o.consumers + b]
        if place[j] == d:
            w[o.waiting + j] -= 1
            if w[o.waiting + j] == 0 and not mode.in_order:
                push_ready(w, x, o, d, j)


@njit_inline
def _touch(w: IntArray, o: Layout, channel: int) -> None:
    """A channel has to choose in this round."""
    if w[o.is_touched + channel] == 0:
        w[o.is_touched + channel] = 1
        w[o.touched_channels + w[o.touched_count]] = channel
        w[o.touched_count] += 1


@njit_internal
def _request(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, e: int, now: float
) -> None:
    """Queue transfer `e` for its channel; where links are free, for the end of this round."""
    if not mode.contended:
        # Links free: `request_queue` lists this round's requests and `touched_count` counts them.
        w[o.request_queue + w[o.touched_count]] = e
        w[o.touched_count] += 1
        return
    x[o.requested_s + e] = now
    channel = channel_of(w, o, place, e)
    base, size = o.request_queue + w[o.request_base + channel], w[o.request_count + channel]
    push_request(w, base, size, x, o.requested_s, o.best_reader, o.priority, e)
    w[o.request_count + channel] = size + 1
    _touch(w, o, channel)


@njit_inline
def _finish_operator(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, d: int, now: float
) -> None:
    i = w[o.running + d]
    # Idle from this round on: `_devices_choose` comes after all ends of the instant (rule E3).
    w[o.running + d] = -1
    w[o.finished] += 1
    if mode.memory:
        release_inputs(w, x, o, place, i, now)
    for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
        k = w[o.out_tensors + a]
        _deliver(w, x, o, mode, place, k, d)
        for e in range(w[o.first_transfer + k], w[o.first_transfer + k + 1]):
            _request(w, x, o, mode, place, e, now)
        if mode.memory:
            release_home(w, x, o, place, k, now)


@njit_inline
def _finish_transfer(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, e: int, now: float
) -> None:
    k, d = w[o.transfer_tensor + e], w[o.transfer_target + e]
    if mode.memory:
        release_home(w, x, o, place, k, now)
        change_held(w, x, o, d, w[o.kept_bytes + k], now)
    _deliver(w, x, o, mode, place, k, d)
    if mode.contended:
        channel = channel_of(w, o, place, e)
        w[o.channel_busy + channel] = 0
        _touch(w, o, channel)


@njit_internal
def _send(w: IntArray, x: FloatArray, o: Layout, place: IntArray, e: int, now: float) -> None:
    """Transfer `e` starts."""
    k = w[o.transfer_tensor + e]
    x[o.sent_s + e] = now
    took = transfer_s(x, o, k, place[w[o.producer + k]], w[o.transfer_target + e])
    _schedule(w, x, o, o.m + e, now + took)


@njit_inline
def _channels_choose(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, now: float
) -> None:
    """Start the first request of every free channel; where links are free, every request."""
    for at in range(w[o.touched_count]):
        if not mode.contended:
            _send(w, x, o, place, w[o.request_queue + at], now)
            continue
        channel = w[o.touched_channels + at]
        w[o.is_touched + channel] = 0
        size = w[o.request_count + channel]
        if w[o.channel_busy + channel] == 1 or size == 0:
            continue
        base = o.request_queue + w[o.request_base + channel]
        e = pop_request(w, base, size, x, o.requested_s, o.best_reader, o.priority)
        w[o.request_count + channel] = size - 1
        w[o.channel_busy + channel] = 1
        _send(w, x, o, place, e, now)
    w[o.touched_count] = 0


@njit_inline
def _next(w: IntArray, x: FloatArray, o: Layout, mode: Mode, d: int) -> int:
    """The operator that device `d` starts now, -1 for none (rules D2 and D3)."""
    base, size = w[o.ready_base + d], w[o.ready_count + d]
    if not mode.in_order:
        if size == 0:
            return -1
        w[o.ready_count + d] = size - 1
        return pop(w, o.ready_queue + base, size, x, o.priority)
    # In order `size` operators of the device's sequence have started; the next one stands at it.
    if base + size == w[o.ready_base + d + 1]:
        return -1
    i = w[o.ready_queue + base + size]
    if w[o.waiting + i] > 0:
        return -1
    w[o.ready_count + d] = size + 1
    return i  # type: ignore[no-any-return]


@njit_inline
def _devices_choose(w: IntArray, x: FloatArray, o: Layout, mode: Mode, now: float) -> None:
    """Start what every free device may start."""
    for d in range(o.m):
        if w[o.running + d] >= 0:
            continue
        i = _next(w, x, o, mode, d)
        if i >= 0:
            _start(w, x, o, mode, d, i, now)
            w[o.running + d] = i
            _schedule(w, x, o, d, x[o.end_s + i])


@njit_internal
def simulate_serial(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, order: IntArray
) -> None:
    """Run one operator, then its transfers, and again (rules S1 to S3)."""
    now = 0.0
    size = 0
    # One heap for the whole system: `ready_queue` begins to end, not by device.
    for i in range(o.n):
        if w[o.waiting + i] == 0 and not mode.in_order:
            push(w, o.ready_queue, size, x, o.priority, i)
            size += 1
    while w[o.finished] < o.n:
        if mode.in_order:
            i = order[w[o.finished]]
            if w[o.waiting + i] > 0:
                return
        else:
            i = pop(w, o.ready_queue, size, x, o.priority)
            size -= 1
        _start(w, x, o, mode, place[i], i, now)
        now = x[o.end_s + i]
        w[o.finished] += 1
        # Readers are ready once their producers have ended (rule S2); all that was sent has
        # arrived by then, since the next operator waits for the last transfer (rule S1).
        now = _serial_transfers(w, x, o, mode, place, i, now)
        for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
            k = w[o.out_tensors + a]
            for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
                j = w[o.consumers + b]
                w[o.waiting + j] -= 1
                if w[o.waiting + j] == 0 and not mode.in_order:
                    push(w, o.ready_queue, size, x, o.priority, j)
                    size += 1


@njit_inline
def _serial_transfers(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, i: int, now: float
) -> float:
    """Send what operator `i` made, best reader first; returns when the last one has arrived."""
    size = 0
    if mode.memory:
        release_inputs(w, x, o, place, i, now)
    for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
        k = w[o.out_tensors + a]
        if mode.memory:
            release_home(w, x, o, place, k, now)
        for e in range(w[o.first_transfer + k], w[o.first_transfer + k + 1]):
            # One instant for all, so that the heap goes by best reader, then tensor (rule S3).
            x[o.requested_s + e] = now
            push_request(w, o.request_queue, size, x, o.requested_s, o.best_reader, o.priority, e)
            size += 1
    while size > 0:
        e = pop_request(w, o.request_queue, size, x, o.requested_s, o.best_reader, o.priority)
        size -= 1
        k, target = w[o.transfer_tensor + e], w[o.transfer_target + e]
        x[o.sent_s + e] = now
        now += transfer_s(x, o, k, place[i], target)
        x[o.event_s + o.m + e] = now
        if mode.memory:
            release_home(w, x, o, place, k, now)
            change_held(w, x, o, target, w[o.kept_bytes + k], now)
    return now
