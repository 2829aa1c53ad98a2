"""The judge's event loop, compiled.

`run` plays one placement on a board (`placewright.operators._board`): ``w`` holds what is whole,
``x`` what is real, ``o`` where each part begins. What is played is said by
`placewright.operators.judge`; ``tests/operators/reference_judge.py`` says it again in slow, plain
Python and must agree to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.compiled import inlined, lean
from placewright.operators._board import Layout
from placewright.operators._heaps import pop, pop_request, push, push_request

DONE, NO_LINK, NO_KERNEL, STUCK = 0, 1, 2, 3
"""What `run` says: played to the end, a pair without a link, an operator its device cannot run,
an order that contradicts the graph. The culprit (a move or an operator) is ``w[o.culprit]``."""


class Mode(NamedTuple):
    """What is played.

    Attributes
    ----------
    contended
        Channels carry one transfer at a time.
    serial
        One operator or transfer at a time in the whole system.
    in_order
        Devices wait for the next operator of the order.
    memory
        Peaks are wanted.
    """

    contended: bool
    serial: bool
    in_order: bool
    memory: bool


@lean
def run(w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, order: IntArray) -> int:
    """Play one placement; the answer stands on the board.

    `order` is a permutation, or empty for the upward rank under this placement.
    """
    if len(order) == 0:
        _rank_upward(w, x, o, place)
    else:
        for at in range(o.n):
            x[o.priority + order[at]] = at
    code = _reset(w, x, o, place)
    if code == DONE:
        code = _list_moves(w, x, o, place)
    if code != DONE:
        return code
    if mode.serial:
        _play_serial(w, x, o, mode, place, order)
    else:
        _reset_lanes(w, o, place)
        _fill_queues(w, x, o, mode, place, order)
        _play_parallel(w, x, o, mode, place)
    for d in range(o.m):
        _hold(w, x, o, d, 0, np.inf)
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
def loads(w: IntArray, x: FloatArray, o: Layout, place: IntArray, out: FloatArray) -> None:
    """Seconds per sample of each device: compute, and every move on both its ends.

    To be called after `run`.
    """
    out[:] = 0.0
    for i in range(o.n):
        out[place[i]] += x[o.compute_s + i * o.m + place[i]]
    for e in range(w[o.moves]):
        k, target = w[o.move_tensor + e], w[o.move_target + e]
        source = place[w[o.producer + k]]
        took = _move_time(w, x, o, k, source, target)
        out[source] += took
        out[target] += took


@inlined
def _stuck(w: IntArray, o: Layout) -> int:
    """Name the first operator that waits forever."""
    for i in range(o.n - 1, -1, -1):
        if w[o.waiting + i] > 0:
            w[o.culprit] = i
    return STUCK


# Before a play.


@inlined
def _fill(w: IntArray, begin: int, size: int, value: int) -> None:
    for at in range(begin, begin + size):
        w[at] = value


@inlined
def _move_time(w: IntArray, x: FloatArray, o: Layout, k: int, source: int, target: int) -> float:
    """Seconds that tensor `k` holds the channel from `source` to `target`."""
    pair = source * o.m + target
    return x[o.latency_s + pair] + x[o.tensor_bytes + k] * x[o.seconds_per_byte + pair]  # type: ignore[no-any-return]


@lean
def _rank_upward(w: IntArray, x: FloatArray, o: Layout, place: IntArray) -> None:
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
                    way += _move_time(w, x, o, k, here, place[j])
                tail = max(tail, way)
        x[o.priority + i] = -(x[o.compute_s + i * o.m + here] + tail)


@inlined
def _reset(w: IntArray, x: FloatArray, o: Layout, place: IntArray) -> int:
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
def _list_moves(w: IntArray, x: FloatArray, o: Layout, place: IntArray) -> int:
    """Every (tensor, other device) once, with its best consumer there; and count the readers."""
    _fill(w, o.best, o.m, -1)
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


@inlined
def _comes_before(x: FloatArray, o: Layout, i: int, j: int) -> bool:
    a, b = x[o.priority + i], x[o.priority + j]
    return a < b or (a == b and i < j)


@inlined
def _linked(w: IntArray, x: FloatArray, o: Layout, source: int, target: int) -> bool:
    pair = source * o.m + target
    finite = np.isfinite(x[o.latency_s + pair] + x[o.seconds_per_byte + pair])
    return w[o.channel + pair] >= 0 and finite  # type: ignore[no-any-return]


@inlined
def _lane(w: IntArray, o: Layout, place: IntArray, e: int) -> int:
    """The channel of move `e`."""
    source = place[w[o.producer + w[o.move_tensor + e]]]
    return w[o.channel + source * o.m + w[o.move_target + e]]  # type: ignore[no-any-return]


@inlined
def _reset_lanes(w: IntArray, o: Layout, place: IntArray) -> None:
    """Empty channel queues sized for this placement's moves."""
    _fill(w, o.lane_base, o.channels + 1, 0)
    _fill(w, o.lane_size, o.channels, 0)
    _fill(w, o.lane_busy, o.channels, 0)
    _fill(w, o.flagged, o.channels, 0)
    for e in range(w[o.moves]):
        w[o.lane_base + _lane(w, o, place, e) + 1] += 1
    for lane in range(o.channels):
        w[o.lane_base + lane + 1] += w[o.lane_base + lane]


@inlined
def _push_ready(w: IntArray, x: FloatArray, o: Layout, d: int, i: int) -> None:
    push(w, o.queue + w[o.queue_base + d], w[o.queue_size + d], x, o.priority, i)
    w[o.queue_size + d] += 1


@inlined
def _fill_queues(
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
            _push_ready(w, x, o, d, i)
    if mode.in_order:
        _fill(w, o.queue_size, o.m, 0)


# Memory.


@inlined
def _hold(w: IntArray, x: FloatArray, o: Layout, d: int, change: int, now: float) -> None:
    """Change the bytes held from `now` on; a level counts once time has passed over it."""
    if now > x[o.changed_s + d]:
        w[o.peak + d] = max(w[o.peak + d], w[o.held + d])
        x[o.changed_s + d] = now
    w[o.held + d] += change


@inlined
def _drop_sender(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, k: int, now: float
) -> None:
    """One reader less of tensor `k` where it was made."""
    w[o.refs + k] -= 1
    if w[o.refs + k] == 0:
        _hold(w, x, o, place[w[o.producer + k]], -w[o.kept_bytes + k], now)


@inlined
def _drop_inputs(
    w: IntArray, x: FloatArray, o: Layout, place: IntArray, i: int, now: float
) -> None:
    """Operator `i` has ended and reads its inputs no more."""
    d = place[i]
    for a in range(w[o.in_offsets + i], w[o.in_offsets + i + 1]):
        k = w[o.in_tensors + a]
        if place[w[o.producer + k]] == d:
            _drop_sender(w, x, o, place, k, now)
            continue
        e = w[o.first_move + k]
        while w[o.move_target + e] != d:
            e += 1
        w[o.move_refs + e] -= 1
        if w[o.move_refs + e] == 0:
            _hold(w, x, o, d, -w[o.kept_bytes + k], now)


# Events.


@inlined
def _expect(w: IntArray, x: FloatArray, o: Layout, slot: int, end_s: float) -> None:
    """Something ends at `end_s`."""
    x[o.event_s + slot] = end_s
    push(w, o.events, w[o.pending], x, o.event_s, slot)
    w[o.pending] += 1


@inlined
def _start(w: IntArray, x: FloatArray, o: Layout, mode: Mode, d: int, i: int, now: float) -> None:
    """Device `d` starts operator `i`; its outputs take room from now on."""
    x[o.start_s + i] = now
    x[o.end_s + i] = now + x[o.compute_s + i * o.m + d]
    if mode.memory:
        for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
            _hold(w, x, o, d, w[o.kept_bytes + w[o.out_tensors + a]], now)


@inlined
def _arrived(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, k: int, d: int
) -> None:
    """Tensor `k` is on device `d`: its consumers there wait for one tensor less."""
    for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
        j = w[o.consumers + b]
        if place[j] == d:
            w[o.waiting + j] -= 1
            if w[o.waiting + j] == 0 and not mode.in_order:
                _push_ready(w, x, o, d, j)


@inlined
def _touch(w: IntArray, o: Layout, lane: int) -> None:
    """Channel `lane` has to choose."""
    if w[o.flagged + lane] == 0:
        w[o.flagged + lane] = 1
        w[o.dirty + w[o.touched]] = lane
        w[o.touched] += 1


@inlined
def _ask(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, e: int, now: float
) -> None:
    """Move `e` is wanted; it queues for its channel or, where links are free, for nothing."""
    if not mode.contended:
        w[o.lane_queue + w[o.touched]] = e
        w[o.touched] += 1
        return
    x[o.asked_s + e] = now
    lane = _lane(w, o, place, e)
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
        _drop_inputs(w, x, o, place, i, now)
    for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
        k = w[o.out_tensors + a]
        _arrived(w, x, o, mode, place, k, d)
        for e in range(w[o.first_move + k], w[o.first_move + k + 1]):
            _ask(w, x, o, mode, place, e, now)
        if mode.memory:
            _drop_sender(w, x, o, place, k, now)


@inlined
def _finish_move(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, e: int, now: float
) -> None:
    k, d = w[o.move_tensor + e], w[o.move_target + e]
    if mode.memory:
        _drop_sender(w, x, o, place, k, now)
        _hold(w, x, o, d, w[o.kept_bytes + k], now)
    _arrived(w, x, o, mode, place, k, d)
    if mode.contended:
        lane = _lane(w, o, place, e)
        w[o.lane_busy + lane] = 0
        _touch(w, o, lane)


@inlined
def _send(w: IntArray, x: FloatArray, o: Layout, place: IntArray, e: int, now: float) -> None:
    """Move `e` starts."""
    k = w[o.move_tensor + e]
    x[o.sent_s + e] = now
    took = _move_time(w, x, o, k, place[w[o.producer + k]], w[o.move_target + e])
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
            _start(w, x, o, mode, d, i, now)
            w[o.running + d] = i
            _expect(w, x, o, d, x[o.end_s + i])


@lean
def _play_parallel(w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray) -> None:
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


# One thing at a time.


@lean
def _play_serial(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, order: IntArray
) -> None:
    """The first ready operator in the order, then its moves, and again."""
    now = 0.0
    size = 0
    for i in range(o.n):
        if w[o.waiting + i] == 0 and not mode.in_order:
            push(w, o.queue, size, x, o.priority, i)
            size += 1
    while w[o.finished] < o.n:
        if mode.in_order:
            i = order[w[o.finished]]
            if w[o.waiting + i] > 0:
                return
        else:
            i = pop(w, o.queue, size, x, o.priority)
            size -= 1
        _start(w, x, o, mode, place[i], i, now)
        now = x[o.end_s + i]
        w[o.finished] += 1
        now = _serial_moves(w, x, o, mode, place, i, now)
        for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
            k = w[o.out_tensors + a]
            for b in range(w[o.offsets + k], w[o.offsets + k + 1]):
                j = w[o.consumers + b]
                w[o.waiting + j] -= 1
                if w[o.waiting + j] == 0 and not mode.in_order:
                    push(w, o.queue, size, x, o.priority, j)
                    size += 1


@inlined
def _serial_moves(
    w: IntArray, x: FloatArray, o: Layout, mode: Mode, place: IntArray, i: int, now: float
) -> float:
    """Move what operator `i` made, best consumer first; returns when the last one has arrived."""
    size = 0
    if mode.memory:
        _drop_inputs(w, x, o, place, i, now)
    for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
        k = w[o.out_tensors + a]
        if mode.memory:
            _drop_sender(w, x, o, place, k, now)
        for e in range(w[o.first_move + k], w[o.first_move + k + 1]):
            x[o.asked_s + e] = now
            push_request(w, o.lane_queue, size, x, o.asked_s, o.move_best, o.priority, e)
            size += 1
    while size > 0:
        e = pop_request(w, o.lane_queue, size, x, o.asked_s, o.move_best, o.priority)
        size -= 1
        k, target = w[o.move_tensor + e], w[o.move_target + e]
        x[o.sent_s + e] = now
        now += _move_time(w, x, o, k, place[i], target)
        x[o.event_s + o.m + e] = now
        if mode.memory:
            _drop_sender(w, x, o, place, k, now)
            _hold(w, x, o, target, w[o.kept_bytes + k], now)
    return now
