"""The judge's event loop, compiled.

One call of `run` plays one placement on the problem's arrays (`Costs`) in buffers that are made
once (`Work`), so that a search pays for no allocation. The words of design.md section 4 and of
`placewright.operators.judge` say what is played; `tests/operators/reference_judge.py` says the
same in slow, plain Python and must agree to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from placewright.arrays import BoolArray, FloatArray, IntArray
from placewright.operators._heaps import pop, pop_request, push, push_request

UNLIMITED = np.int64(2**62)
"""Bytes of a device without a limit."""

DONE, NO_LINK, NO_KERNEL, STUCK = 0, 1, 2, 3
"""What `run` says: played to the end, a pair without a link, an operator its device cannot run,
an order that contradicts the graph. The culprit (move or operator) is ``counts[CULPRIT]``."""

MOVES, EVENTS, DIRTY, FINISHED, CULPRIT = 0, 1, 2, 3, 4


class Costs(NamedTuple):
    """A problem's arrays as the kernels read them; `kept_bytes` and below in whole bytes."""

    compute_s: FloatArray
    producer: IntArray
    tensor_bytes: FloatArray
    offsets: IntArray
    consumers: IntArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    channel: IntArray
    order: IntArray
    in_offsets: IntArray
    in_tensors: IntArray
    out_offsets: IntArray
    out_tensors: IntArray
    kept_bytes: IntArray
    resident_bytes: IntArray
    memory_bytes: IntArray


class Mode(NamedTuple):
    """What is played: `contended` links, `serial` system, `in_order` dispatch."""

    contended: bool
    serial: bool
    in_order: bool


class Work(NamedTuple):
    """Buffers of one run; also where its answer stands.

    A *move* is one transfer of one tensor to one device; moves of tensor k are
    ``first_move[k]:first_move[k + 1]``.
    """

    priority: FloatArray
    waiting: IntArray
    start_s: FloatArray
    end_s: FloatArray
    queue: IntArray
    queue_base: IntArray
    queue_size: IntArray
    running: IntArray
    first_move: IntArray
    move_tensor: IntArray
    move_target: IntArray
    move_best: IntArray
    move_refs: IntArray
    asked_s: FloatArray
    sent_s: FloatArray
    lane_queue: IntArray
    lane_base: IntArray
    lane_size: IntArray
    lane_busy: BoolArray
    dirty: IntArray
    flagged: BoolArray
    events: IntArray
    event_s: FloatArray
    refs: IntArray
    held: IntArray
    peak: IntArray
    changed_s: FloatArray
    best: IntArray
    counts: IntArray


def make_work(costs: Costs, channels: int) -> Work:
    """Buffers large enough for any placement."""
    (n, m), t = costs.compute_s.shape, len(costs.producer)
    moves = int(np.minimum(np.diff(costs.offsets), m - 1).sum())

    def ints(size: int) -> IntArray:
        return np.zeros(size, dtype=np.int64)

    def bools(size: int) -> BoolArray:
        return np.zeros(size, dtype=np.bool_)

    return Work(
        np.zeros(n), ints(n), np.zeros(n), np.zeros(n),
        ints(n), ints(m + 1), ints(m), ints(m),
        ints(t + 1), ints(moves), ints(moves), ints(moves), ints(moves),
        np.zeros(moves), np.zeros(moves),
        ints(moves), ints(channels + 1), ints(channels), bools(channels), ints(channels),
        bools(channels),
        ints(m + moves), np.zeros(m + moves),
        ints(t), ints(m), ints(m), np.zeros(m), ints(m), ints(5),
    )  # fmt: skip


@njit(cache=True)
def move_time(c: Costs, k: int, source: int, target: int) -> float:
    """Seconds that tensor `k` holds the channel from `source` to `target`."""
    return c.latency_s[source, target] + c.tensor_bytes[k] * c.seconds_per_byte[source, target]  # type: ignore[no-any-return]


@njit(cache=True)
def upward_rank(c: Costs, place: IntArray, out: FloatArray) -> None:
    """Minus the longest way to the end under this very placement: first comes the least."""
    for at in range(len(c.order) - 1, -1, -1):
        i = c.order[at]
        here = place[i]
        tail = 0.0
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                way = -out[j]
                if place[j] != here:
                    way += move_time(c, k, here, place[j])
                tail = max(tail, way)
        out[i] = -(c.compute_s[i, here] + tail)


@njit(cache=True)
def _list_moves(c: Costs, w: Work, place: IntArray) -> int:
    """Every (tensor, other device) once, with its first consumer there; also the readers' count."""
    w.best[:] = -1
    moves = 0
    for k in range(len(c.producer)):
        source = place[c.producer[k]]
        first = moves
        w.first_move[k] = moves
        w.refs[k] = 1
        for b in range(c.offsets[k], c.offsets[k + 1]):
            j = c.consumers[b]
            target = place[j]
            if target == source:
                w.refs[k] += 1
                continue
            e = w.best[target]
            if e < first:
                e = moves
                moves += 1
                w.best[target] = e
                w.move_tensor[e], w.move_target[e] = k, target
                w.move_best[e], w.move_refs[e] = j, 1
                w.refs[k] += 1
                if c.channel[source, target] < 0 or not np.isfinite(
                    c.latency_s[source, target] + c.seconds_per_byte[source, target]
                ):
                    w.counts[CULPRIT] = e
                    return NO_LINK
                continue
            w.move_refs[e] += 1
            o = w.move_best[e]
            if w.priority[j] < w.priority[o] or (w.priority[j] == w.priority[o] and j < o):
                w.move_best[e] = j
    w.first_move[len(c.producer)] = moves
    w.counts[MOVES] = moves
    return DONE


@njit(cache=True)
def _reset(c: Costs, w: Work, place: IntArray) -> int:
    """Empty queues sized for this placement; resident bytes held."""
    n, m = c.compute_s.shape
    w.queue_base[:] = 0
    w.held[:] = 0
    for i in range(n):
        d = place[i]
        if not np.isfinite(c.compute_s[i, d]):
            w.counts[CULPRIT] = i
            return NO_KERNEL
        w.queue_base[d + 1] += 1
        w.held[d] += c.resident_bytes[i]
        w.waiting[i] = c.in_offsets[i + 1] - c.in_offsets[i]
    for d in range(m):
        w.queue_base[d + 1] += w.queue_base[d]
        w.peak[d] = w.held[d]
        w.changed_s[d] = 0.0
    w.queue_size[:] = 0
    w.running[:] = -1
    w.counts[EVENTS] = w.counts[DIRTY] = w.counts[FINISHED] = 0
    return DONE


@njit(cache=True)
def _reset_lanes(c: Costs, w: Work, place: IntArray) -> None:
    """Empty channel queues sized for this placement's moves."""
    w.lane_base[:] = 0
    for e in range(w.counts[MOVES]):
        source = place[c.producer[w.move_tensor[e]]]
        w.lane_base[c.channel[source, w.move_target[e]] + 1] += 1
    for x in range(len(w.lane_size)):
        w.lane_base[x + 1] += w.lane_base[x]
    w.lane_size[:] = 0
    w.lane_busy[:] = False
    w.flagged[:] = False


@njit(cache=True)
def _hold(w: Work, d: int, change: int, now: float) -> None:
    """Change the bytes held from `now` on; a level counts once time has passed over it."""
    if now > w.changed_s[d]:
        w.peak[d] = max(w.peak[d], w.held[d])
        w.changed_s[d] = now
    w.held[d] += change


@njit(cache=True)
def _drop_sender(c: Costs, w: Work, place: IntArray, k: int, now: float) -> None:
    """One reader less of tensor `k` where it was made."""
    w.refs[k] -= 1
    if w.refs[k] == 0:
        _hold(w, place[c.producer[k]], -c.kept_bytes[k], now)


@njit(cache=True)
def _drop_inputs(c: Costs, w: Work, place: IntArray, i: int, now: float) -> None:
    """Operator `i` has ended and reads its inputs no more."""
    d = place[i]
    for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
        k = c.in_tensors[a]
        if place[c.producer[k]] == d:
            _drop_sender(c, w, place, k, now)
            continue
        e = w.first_move[k]
        while w.move_target[e] != d:
            e += 1
        w.move_refs[e] -= 1
        if w.move_refs[e] == 0:
            _hold(w, d, -c.kept_bytes[k], now)


@njit(cache=True)
def _start(c: Costs, w: Work, d: int, i: int, now: float) -> None:
    """Device `d` starts operator `i`; its outputs take room from now on."""
    w.start_s[i] = now
    w.end_s[i] = now + c.compute_s[i, d]
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        _hold(w, d, c.kept_bytes[c.out_tensors[a]], now)


@njit(cache=True)
def _arrived(c: Costs, w: Work, place: IntArray, k: int, d: int, in_order: bool) -> None:
    """Tensor `k` is on device `d`: its consumers there wait for one tensor less."""
    for b in range(c.offsets[k], c.offsets[k + 1]):
        j = c.consumers[b]
        if place[j] == d:
            w.waiting[j] -= 1
            if w.waiting[j] == 0 and not in_order:
                push(w.queue, w.queue_base[d], w.queue_size[d], w.priority, j)
                w.queue_size[d] += 1


@njit(cache=True)
def _touch(w: Work, x: int) -> None:
    """Channel `x` has to choose."""
    if not w.flagged[x]:
        w.flagged[x] = True
        w.dirty[w.counts[DIRTY]] = x
        w.counts[DIRTY] += 1


@njit(cache=True)
def _send(c: Costs, w: Work, source: int, e: int, now: float) -> None:
    """Move `e` starts."""
    w.sent_s[e] = now
    slot = len(w.running) + e
    w.event_s[slot] = now + move_time(c, w.move_tensor[e], source, w.move_target[e])
    push(w.events, 0, w.counts[EVENTS], w.event_s, slot)
    w.counts[EVENTS] += 1


@njit(cache=True)
def _ask(c: Costs, w: Work, source: int, e: int, now: float, contended: bool) -> None:
    """Move `e` is wanted; it queues for its channel or, where links are free, for nothing."""
    w.asked_s[e] = now
    if not contended:
        w.lane_queue[w.counts[DIRTY]] = e
        w.counts[DIRTY] += 1
        return
    x = c.channel[source, w.move_target[e]]
    push_request(
        w.lane_queue, w.lane_base[x], w.lane_size[x], w.asked_s, w.move_best, w.priority, e
    )
    w.lane_size[x] += 1
    _touch(w, x)


@njit(cache=True)
def _finish_operator(c: Costs, w: Work, place: IntArray, mode: Mode, d: int, now: float) -> None:
    i = w.running[d]
    w.running[d] = -1
    w.counts[FINISHED] += 1
    _drop_inputs(c, w, place, i, now)
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        k = c.out_tensors[a]
        _arrived(c, w, place, k, d, mode.in_order)
        for e in range(w.first_move[k], w.first_move[k + 1]):
            _ask(c, w, d, e, now, mode.contended)
        _drop_sender(c, w, place, k, now)


@njit(cache=True)
def _finish_move(c: Costs, w: Work, place: IntArray, mode: Mode, e: int, now: float) -> None:
    k, d = w.move_tensor[e], w.move_target[e]
    source = place[c.producer[k]]
    _drop_sender(c, w, place, k, now)
    _hold(w, d, c.kept_bytes[k], now)
    _arrived(c, w, place, k, d, mode.in_order)
    if mode.contended:
        x = c.channel[source, d]
        w.lane_busy[x] = False
        _touch(w, x)


@njit(cache=True)
def _channels_choose(c: Costs, w: Work, place: IntArray, now: float) -> None:
    for s in range(w.counts[DIRTY]):
        x = w.dirty[s]
        w.flagged[x] = False
        if w.lane_busy[x] or w.lane_size[x] == 0:
            continue
        e = pop_request(
            w.lane_queue, w.lane_base[x], w.lane_size[x], w.asked_s, w.move_best, w.priority
        )
        w.lane_size[x] -= 1
        w.lane_busy[x] = True
        _send(c, w, place[c.producer[w.move_tensor[e]]], e, now)
    w.counts[DIRTY] = 0


@njit(cache=True)
def _send_all(c: Costs, w: Work, place: IntArray, now: float) -> None:
    """Links are free: whatever was asked for starts."""
    for s in range(w.counts[DIRTY]):
        e = w.lane_queue[s]
        _send(c, w, place[c.producer[w.move_tensor[e]]], e, now)
    w.counts[DIRTY] = 0


@njit(cache=True)
def _next(w: Work, d: int, in_order: bool) -> int:
    """The operator that device `d` starts now, -1 for none."""
    base, size = w.queue_base[d], w.queue_size[d]
    if in_order:
        if base + size == w.queue_base[d + 1] or w.waiting[w.queue[base + size]] > 0:
            return -1
        w.queue_size[d] += 1
        return w.queue[base + size]  # type: ignore[no-any-return]
    if size == 0:
        return -1
    w.queue_size[d] -= 1
    return pop(w.queue, base, size, w.priority)  # type: ignore[no-any-return]


@njit(cache=True)
def _devices_choose(c: Costs, w: Work, in_order: bool, now: float) -> None:
    for d in range(len(w.running)):
        if w.running[d] >= 0:
            continue
        i = _next(w, d, in_order)
        if i < 0:
            continue
        _start(c, w, d, i, now)
        w.running[d] = i
        w.event_s[d] = w.end_s[i]
        push(w.events, 0, w.counts[EVENTS], w.event_s, d)
        w.counts[EVENTS] += 1


@njit(cache=True)
def _fill_queues(w: Work, place: IntArray, order: IntArray, in_order: bool) -> None:
    """In order: each device's whole sequence. Else: what has no inputs."""
    for i in order:
        d = place[i]
        if in_order:
            w.queue[w.queue_base[d] + w.queue_size[d]] = i
            w.queue_size[d] += 1
        elif w.waiting[i] == 0:
            push(w.queue, w.queue_base[d], w.queue_size[d], w.priority, i)
            w.queue_size[d] += 1
    if in_order:
        w.queue_size[:] = 0


@njit(cache=True)
def _play_parallel(c: Costs, w: Work, place: IntArray, mode: Mode) -> None:
    """Events of one time, then channels, then devices, until nothing is left."""
    m = len(w.running)
    now = 0.0
    _devices_choose(c, w, mode.in_order, now)
    while w.counts[EVENTS] > 0:
        now = w.event_s[w.events[0]]
        while w.counts[EVENTS] > 0 and w.event_s[w.events[0]] == now:
            slot = pop(w.events, 0, w.counts[EVENTS], w.event_s)
            w.counts[EVENTS] -= 1
            if slot < m:
                _finish_operator(c, w, place, mode, slot, now)
            else:
                _finish_move(c, w, place, mode, slot - m, now)
        if mode.contended:
            _channels_choose(c, w, place, now)
        else:
            _send_all(c, w, place, now)
        _devices_choose(c, w, mode.in_order, now)


@njit(cache=True)
def _serial_outputs(c: Costs, w: Work, place: IntArray, i: int, now: float) -> float:
    """Move what operator `i` made, one after another: best consumer first."""
    d = place[i]
    size = 0
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        k = c.out_tensors[a]
        for e in range(w.first_move[k], w.first_move[k + 1]):
            w.asked_s[e] = now
            push_request(w.lane_queue, 0, size, w.asked_s, w.move_best, w.priority, e)
            size += 1
    while size > 0:
        e = pop_request(w.lane_queue, 0, size, w.asked_s, w.move_best, w.priority)
        size -= 1
        k, target = w.move_tensor[e], w.move_target[e]
        w.sent_s[e] = now
        now += move_time(c, k, d, target)
        w.event_s[len(w.running) + e] = now
        _drop_sender(c, w, place, k, now)
        _hold(w, target, c.kept_bytes[k], now)
    return now


@njit(cache=True)
def _play_serial(c: Costs, w: Work, place: IntArray, order: IntArray, in_order: bool) -> None:
    """One operator or transfer at a time: the first ready one in the order, then its moves."""
    n = len(place)
    now = 0.0
    size = 0
    for i in range(n):
        if w.waiting[i] == 0 and not in_order:
            push(w.queue, 0, size, w.priority, i)
            size += 1
    while size > 0 or (in_order and w.counts[FINISHED] < n):
        i = order[w.counts[FINISHED]] if in_order else pop(w.queue, 0, size, w.priority)
        size -= 1
        if w.waiting[i] > 0:
            break
        _start(c, w, place[i], i, now)
        now = w.end_s[i]
        w.counts[FINISHED] += 1
        _drop_inputs(c, w, place, i, now)
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            _drop_sender(c, w, place, c.out_tensors[a], now)
        now = _serial_outputs(c, w, place, i, now)
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                w.waiting[j] -= 1
                if w.waiting[j] == 0 and not in_order:
                    push(w.queue, 0, size, w.priority, j)
                    size += 1


@njit(cache=True)
def run(c: Costs, w: Work, mode: Mode, place: IntArray, order: IntArray) -> int:
    """Play one placement; the answer stands in `w`.

    `order` is a permutation, or empty for the upward rank under this placement.
    """
    if len(order) == 0:
        upward_rank(c, place, w.priority)
    else:
        for at in range(len(order)):
            w.priority[order[at]] = at
    code = _reset(c, w, place)
    if code == DONE:
        code = _list_moves(c, w, place)
    if code != DONE:
        return code  # type: ignore[no-any-return]
    if mode.serial:
        _play_serial(c, w, place, order, mode.in_order)
    else:
        _reset_lanes(c, w, place)
        _fill_queues(w, place, order if len(order) > 0 else c.order, mode.in_order)
        _play_parallel(c, w, place, mode)
    for d in range(len(w.running)):
        _hold(w, d, 0, np.inf)
    if w.counts[FINISHED] < len(place):
        w.counts[CULPRIT] = np.argmax(w.waiting > 0)
        return STUCK
    return DONE


@njit(cache=True)
def loads(c: Costs, w: Work, place: IntArray, out: FloatArray) -> None:
    """Seconds per sample of each device: compute, and every move on both its ends.

    To be called after `run`.
    """
    out[:] = 0.0
    for i in range(len(place)):
        out[place[i]] += c.compute_s[i, place[i]]
    for e in range(w.counts[MOVES]):
        k, target = w.move_tensor[e], w.move_target[e]
        source = place[c.producer[k]]
        took = move_time(c, k, source, target)
        out[source] += took
        out[target] += took


@njit(cache=True)
def over_bytes(c: Costs, w: Work) -> int:
    """Bytes over the devices' memories, summed; to be called after `run`."""
    total = 0
    for d in range(len(w.peak)):
        total += max(0, w.peak[d] - c.memory_bytes[d])
    return total


@njit(cache=True)
def run_many(
    c: Costs,
    w: Work,
    mode: Mode,
    throughput: bool,
    placements: IntArray,
    order: IntArray,
    value_s: FloatArray,
    violation_bytes: IntArray,
) -> None:
    """`run` for every row; ``inf`` where a placement cannot be played."""
    load_s = np.zeros(c.compute_s.shape[1])
    for row in range(len(placements)):
        code = run(c, w, mode, placements[row], order)
        value_s[row], violation_bytes[row] = np.inf, 0
        if code != DONE:
            continue
        violation_bytes[row] = over_bytes(c, w)
        if throughput:
            loads(c, w, placements[row], load_s)
            value_s[row] = load_s.max()
        else:
            value_s[row] = w.end_s.max()
