"""One operator or transfer at a time, compiled: part of the judge's general play."""

from __future__ import annotations

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import inlined, inner
from placewright.operators.queues.heaps import pop, pop_request, push, push_request
from placewright.operators.simulation.full.memory import drop_inputs, drop_sender, hold
from placewright.operators.simulation.full.moves import move_time
from placewright.operators.simulation.full.parallel import start
from placewright.operators.simulation.full.state import Layout
from placewright.operators.simulation.modes import Mode


@inner
def play_serial(
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
        start(w, x, o, mode, place[i], i, now)
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
        drop_inputs(w, x, o, place, i, now)
    for a in range(w[o.out_offsets + i], w[o.out_offsets + i + 1]):
        k = w[o.out_tensors + a]
        if mode.memory:
            drop_sender(w, x, o, place, k, now)
        for e in range(w[o.first_move + k], w[o.first_move + k + 1]):
            x[o.asked_s + e] = now
            push_request(w, o.lane_queue, size, x, o.asked_s, o.move_best, o.priority, e)
            size += 1
    while size > 0:
        e = pop_request(w, o.lane_queue, size, x, o.asked_s, o.move_best, o.priority)
        size -= 1
        k, target = w[o.move_tensor + e], w[o.move_target + e]
        x[o.sent_s + e] = now
        now += move_time(w, x, o, k, place[i], target)
        x[o.event_s + o.m + e] = now
        if mode.memory:
            drop_sender(w, x, o, place, k, now)
            hold(w, x, o, target, w[o.kept_bytes + k], now)
    return now
