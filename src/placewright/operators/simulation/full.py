"""Full simulator, compiled: start and end of every operator and transfer, and peaks of memory.

The rules are those of docs/reference/simulation.md;
``tests/operators/simulation/reference.py`` follows them in plain Python, to the last bit.

*Memory.* Every copy of a tensor counts its readers that have not ended: ``home_readers`` where it
is made (its producer, consumers there, outgoing transfers, and views made there that are still
held), ``copy_readers`` where it is received. At zero its bytes are released.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_internal, njit_no_refcount
from placewright.operators.queues import pop, pop_request, push, push_request
from placewright.operators.simulation.full_state import (
    StateLayout,
    channel_of,
    fill_queues,
    list_transfers,
    push_ready,
    rank_upward,
    reset,
    reset_channels,
    transfer_s,
)
from placewright.operators.simulation.inputs import DONE, STUCK, Mode


@njit_no_refcount
def simulate(
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, order: IntArray
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
def _stuck(w: IntArray, o: StateLayout) -> int:
    """Name the first operator that waits forever."""
    # From the last to the first: the least index stays (rule P3).
    for i in range(o.n - 1, -1, -1):
        if w[o.waiting + i] > 0:
            w[o.failed_item] = i
    return STUCK


@njit_no_refcount
def makespan(x: FloatArray, o: StateLayout) -> float:
    """End of the last operator, after `simulate`."""
    last = 0.0
    for i in range(o.n):
        last = max(last, x[o.end_s + i])
    return last


@njit_no_refcount
def over_bytes(w: IntArray, o: StateLayout) -> int:
    """Bytes over the devices' memories, summed, after `simulate`."""
    total = 0
    for d in range(o.m):
        total += max(0, w[o.peak + d] - w[o.memory_bytes + d])
    return total


@njit_no_refcount
def period(
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, load_s: FloatArray
) -> float:
    """Seconds from one sample to the next (rules L1, L3 and L4), without copies of stages.

    Needs no simulation before it. `load_s` is scratch, shape (m + channels,).
    """
    if o.passes == 1:
        return _period(w, x, o, mode, place, load_s, -1)
    first = _period(w, x, o, mode, place, load_s, 0)
    return first + _period(w, x, o, mode, place, load_s, 1)


@njit_inline
def _period(
    w: IntArray,
    x: FloatArray,
    o: StateLayout,
    mode: Mode,
    place: IntArray,
    load_s: FloatArray,
    only: int,
) -> float:
    """Of the first pass (0), of the second (1), or of both together (-1)."""
    load_s[:] = 0.0
    for d in range(o.m):
        # `last_transfer` is scratch here: the last tensor that was sent to each device.
        w[o.last_transfer + d] = -1
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
                channel = w[o.channel + source * o.m + target]
                load_s[o.m + channel] += transfer_s(x, o, k, source, target)
    # Devices and channels work side by side; with free links channels do any number of things.
    total, largest = 0.0, 0.0
    for r in range(o.m + o.channels if mode.serial or mode.contended else o.m):
        total += load_s[r]
        largest = max(largest, load_s[r])
    return total if mode.serial else largest


@njit_internal
def simulate_parallel(
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray
) -> None:
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
def _schedule(w: IntArray, x: FloatArray, o: StateLayout, event: int, end_s: float) -> None:
    """Something ends at `end_s`."""
    x[o.event_s + event] = end_s
    push(w, o.event_queue, w[o.event_count], x, o.event_s, event)
    w[o.event_count] += 1


@njit_internal
def _start(
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, d: int, i: int, now: float
) -> None:
    """Device `d` starts operator `i`; its outputs take room from now on (rule M2)."""
    x[o.start_s + i] = now
    x[o.end_s + i] = now + x[o.compute_s + i * o.m + d]
    if mode.memory:
        for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
            change_held(w, x, o, d, w[o.home_bytes + w[o.out_tensors + a]], now)


@njit_internal
def _deliver(
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, k: int, d: int
) -> None:
    """Tensor `k` is on device `d`: its consumers there wait for one tensor less."""
    for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
        j = w[o.consumers + b]
        if place[j] == d:
            w[o.waiting + j] -= 1
            if w[o.waiting + j] == 0 and not mode.in_order:
                push_ready(w, x, o, d, j)


@njit_inline
def _touch(w: IntArray, o: StateLayout, channel: int) -> None:
    """A channel has to choose in this round."""
    if w[o.is_touched + channel] == 0:
        w[o.is_touched + channel] = 1
        w[o.touched_channels + w[o.touched_count]] = channel
        w[o.touched_count] += 1


@njit_internal
def _request(
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, e: int, now: float
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
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, d: int, now: float
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
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, e: int, now: float
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
def _send(w: IntArray, x: FloatArray, o: StateLayout, place: IntArray, e: int, now: float) -> None:
    """Transfer `e` starts."""
    k = w[o.transfer_tensor + e]
    x[o.sent_s + e] = now
    took = transfer_s(x, o, k, place[w[o.producer + k]], w[o.transfer_target + e])
    _schedule(w, x, o, o.m + e, now + took)


@njit_inline
def _channels_choose(
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, now: float
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
def _next(w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, d: int) -> int:
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
def _devices_choose(w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, now: float) -> None:
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
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, order: IntArray
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
    w: IntArray, x: FloatArray, o: StateLayout, mode: Mode, place: IntArray, i: int, now: float
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


@njit_internal
def change_held(
    w: IntArray, x: FloatArray, o: StateLayout, d: int, change: int, now: float
) -> None:
    """Change the bytes held from `now` on; a level counts once time has passed over it (M4)."""
    # `peak` is of levels that lasted; changes at one instant add up before they are looked at.
    if now > x[o.changed_s + d]:
        w[o.peak + d] = max(w[o.peak + d], w[o.held + d])
        x[o.changed_s + d] = now
    w[o.held + d] += change


@njit_inline
def _transfer_to(w: IntArray, o: StateLayout, k: int, d: int) -> int:
    """The transfer of tensor `k` to device `d`; there is one."""
    # One per device at most: a short search, and no table of t * m.
    e = w[o.first_transfer + k]
    while w[o.transfer_target + e] != d:
        e += 1
    return e  # type: ignore[no-any-return]


@njit_inline
def _readers_at(w: IntArray, o: StateLayout, place: IntArray, k: int, d: int) -> int:
    """Where in ``w`` the readers of the copy of tensor `k` on device `d` are counted."""
    if place[w[o.producer + k]] == d:
        return o.home_readers + k
    return o.copy_readers + _transfer_to(w, o, k, d)


@njit_internal
def count_views(w: IntArray, o: StateLayout, place: IntArray) -> None:
    """Count every view as a reader of its base (rule M5)."""
    for a in range(o.shared):
        k = w[o.views + a]
        # Its producer reads the base, so that there is a copy of the base on its device.
        w[_readers_at(w, o, place, w[o.alias + k], place[w[o.producer + k]])] += 1


@njit_internal
def _release_viewed(
    w: IntArray, x: FloatArray, o: StateLayout, place: IntArray, k: int, d: int, now: float
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
    w: IntArray, x: FloatArray, o: StateLayout, place: IntArray, k: int, now: float
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
    w: IntArray, x: FloatArray, o: StateLayout, place: IntArray, i: int, now: float
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
