"""The judge's event loop, compiled: devices and channels are at work at the same time."""

from __future__ import annotations

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import inlined, inner
from placewright.operators.queues.heaps import pop, pop_request, push, push_request
from placewright.operators.simulation.full.memory import drop_inputs, drop_sender, hold
from placewright.operators.simulation.full.moves import lane_of, move_time
from placewright.operators.simulation.full.setup import push_ready
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.modes import Mode


@inner
def play_parallel(w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray) -> None:
    """Events of one time, then channels, then devices, until nothing is left."""
    _devices_choose(w, x, o, mode, 0.0)
    while w[o.pending] > 0:
        now = x[o.event_s + w[o.events]]
        while w[o.pending] > 0 and x[o.event_s + w[o.events]] == now:
            slot = pop(w, o.events, w[o.pending], x, o.event_s)
            w[o.pending] -= 1
            if slot < o.m:
                _finish_operator(w, x, o, mode, place, slot, now)
            else:
                _finish_move(w, x, o, mode, place, slot - o.m, now)
        _channels_choose(w, x, o, mode, place, now)
        _devices_choose(w, x, o, mode, now)


@inner
def _expect(w: IntArray, x: FloatArray, o: Layout, slot: int, end_s: float) -> None:
    """Something ends at `end_s`."""
    x[o.event_s + slot] = end_s
    push(w, o.events, w[o.pending], x, o.event_s, slot)
    w[o.pending] += 1


@inner
def start(w: IntArray, x: FloatArray, o: Layout, mode: Mode, d: int, i: int, now: float) -> None:
    """Device `d` starts operator `i`; its outputs take room from now on."""
    x[o.start_s + i] = now
    x[o.end_s + i] = now + x[o.compute_s + i * o.m + d]
    if mode.memory:
        for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
            hold(w, x, o, d, w[o.home_bytes + w[o.out_tensors + a]], now)


@inner
def _arrived(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, k: int, d: int
) -> None:
    """Tensor `k` is on device `d`: its consumers there wait for one tensor less."""
    for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
        j = w[o.consumers + b]
        if place[j] == d:
            w[o.waiting + j] -= 1
            if w[o.waiting + j] == 0 and not mode.in_order:
                push_ready(w, x, o, d, j)


@inlined
def _touch(w: IntArray, o: Layout, lane: int) -> None:
    """Channel `lane` has to choose."""
    if w[o.flagged + lane] == 0:
        w[o.flagged + lane] = 1
        w[o.dirty + w[o.touched]] = lane
        w[o.touched] += 1


@inner
def _ask(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, e: int, now: float
) -> None:
    """Move `e` is wanted; it queues for its channel or, where links are free, for nothing."""
    if not mode.contended:
        w[o.lane_queue + w[o.touched]] = e
        w[o.touched] += 1
        return
    x[o.asked_s + e] = now
    lane = lane_of(w, o, place, e)
    base, size = o.lane_queue + w[o.lane_base + lane], w[o.lane_size + lane]
    push_request(w, base, size, x, o.asked_s, o.move_best, o.priority, e)
    w[o.lane_size + lane] = size + 1
    _touch(w, o, lane)


@inlined
def _finish_operator(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, d: int, now: float
) -> None:
    i = w[o.running + d]
    w[o.running + d] = -1
    w[o.finished] += 1
    if mode.memory:
        drop_inputs(w, x, o, place, i, now)
    for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
        k = w[o.out_tensors + a]
        _arrived(w, x, o, mode, place, k, d)
        for e in range(w[o.first_move + k], w[o.first_move + k + 1]):
            _ask(w, x, o, mode, place, e, now)
        if mode.memory:
            drop_sender(w, x, o, place, k, now)


@inlined
def _finish_move(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, e: int, now: float
) -> None:
    k, d = w[o.move_tensor + e], w[o.move_target + e]
    if mode.memory:
        drop_sender(w, x, o, place, k, now)
        hold(w, x, o, d, w[o.kept_bytes + k], now)
    _arrived(w, x, o, mode, place, k, d)
    if mode.contended:
        lane = lane_of(w, o, place, e)
        w[o.lane_busy + lane] = 0
        _touch(w, o, lane)


@inner
def _send(w: IntArray, x: FloatArray, o: Layout, place: IntArray, e: int, now: float) -> None:
    """Move `e` starts."""
    k = w[o.move_tensor + e]
    x[o.sent_s + e] = now
    took = move_time(w, x, o, k, place[w[o.producer + k]], w[o.move_target + e])
    _expect(w, x, o, o.m + e, now + took)


@inlined
def _channels_choose(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, now: float
) -> None:
    """Every free channel starts its first request; where links are free, all requests start."""
    for s in range(w[o.touched]):
        if not mode.contended:
            _send(w, x, o, place, w[o.lane_queue + s], now)
            continue
        lane = w[o.dirty + s]
        w[o.flagged + lane] = 0
        size = w[o.lane_size + lane]
        if w[o.lane_busy + lane] == 1 or size == 0:
            continue
        base = o.lane_queue + w[o.lane_base + lane]
        e = pop_request(w, base, size, x, o.asked_s, o.move_best, o.priority)
        w[o.lane_size + lane] = size - 1
        w[o.lane_busy + lane] = 1
        _send(w, x, o, place, e, now)
    w[o.touched] = 0


@inlined
def _next(w: IntArray, x: FloatArray, o: Layout, mode: Mode, d: int) -> int:
    """The operator that device `d` starts now, -1 for none."""
    base, size = w[o.queue_base + d], w[o.queue_size + d]
    if not mode.in_order:
        if size == 0:
            return -1
        w[o.queue_size + d] = size - 1
        return pop(w, o.queue + base, size, x, o.priority)
    if base + size == w[o.queue_base + d + 1]:
        return -1
    i = w[o.queue + base + size]
    if w[o.waiting + i] > 0:
        return -1
    w[o.queue_size + d] = size + 1
    return i  # type: ignore[no-any-return]


@inlined
def _devices_choose(w: IntArray, x: FloatArray, o: Layout, mode: Mode, now: float) -> None:
    """Every free device starts what it may."""
    for d in range(o.m):
        if w[o.running + d] >= 0:
            continue
        i = _next(w, x, o, mode, d)
        if i >= 0:
            start(w, x, o, mode, d, i, now)
            w[o.running + d] = i
            _expect(w, x, o, d, x[o.end_s + i])
