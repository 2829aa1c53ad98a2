"""The judge's fast path, compiled: makespans without their story.

The same play as `placewright.operators.simulation.full.kernels.run`, to the last bit, with fewer
events. A channel serves first come, first served, so the end of a transfer is known the moment it
is asked for; an operator's first possible start is known when its last producer ends. What is left
to happen is one event per operator, and the next one is the least of m numbers.

Where something takes no time at all, requests of one time can come in several rounds and overtake
each other. The play then says `UNSURE`, and the general one is asked.

Two things keep a processor busy. What it would guess wrong is computed instead of branched on;
and since every event waits for the one before, some plays take turns event by event.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import index, inlined, inner, lean
from placewright.operators.queues.ready_sets import clear
from placewright.operators.simulation.fast.choice import choose, expect, go_on
from placewright.operators.simulation.fast.ranking import follow, line_up, rank_upward
from placewright.operators.simulation.fast.send import send
from placewright.operators.simulation.fast.state import FastState, Seat
from placewright.operators.simulation.modes import Mode

UNSURE = -1.0
"""Said instead of a makespan where only the general play can tell."""


@lean
def play(s: FastState, mode: Mode, placement: IntArray, order: IntArray) -> float:
    """Makespan of a placement, ``inf`` where it cannot be played, or `UNSURE`.

    Takes every mode but serial. With `mode.memory`, `placewright.operators.simulation.fast.memory`
    can tell the bytes over afterwards.
    """
    sit(s, mode, placement, order, 0)
    play_seated(s, mode, 1)
    return s.last_s[0]  # type: ignore[no-any-return]


@inner
def sit(s: FastState, mode: Mode, placement: IntArray, order: IntArray, number: int) -> None:
    """Take a seat: ready to be played, or already known not to be playable."""
    handle = seat_of(s, number)
    s.left[number], s.last_s[number] = 0, UNSURE
    if not s.sure:
        return
    for d in range(s.m):
        s.devices[handle.device + index(d)].end = 0
    if len(order) == 0:
        least = rank_upward(s, handle, placement)
        playable = least > -np.inf
        if playable:
            line_up(s, handle, least)
    else:
        playable = follow(s, handle, placement, order) < np.inf
    if not playable:
        s.last_s[number] = np.inf
        return
    _lay_out(s, mode, handle)
    s.left[number] = s.n


@inner
def play_seated(s: FastState, mode: Mode, count: int) -> None:
    """Play the first `count` seats to the end; `last_s` has the makespans."""
    busy = True
    while busy:
        busy = False
        for number in range(count):
            if s.left[number] > 0:
                _step(s, mode, seat_of(s, number), number)
                busy = True


@inlined
def seat_of(s: FastState, number: int) -> Seat:
    """Where a play has its state."""
    return Seat(
        op=index(number * (s.n + 1)),
        device=index(number * s.m),
        lane=index(number * s.lanes),
        known=index(number * (s.n + 2 * s.m)),
        edge=index(number * len(s.edges)),
    )


@inlined
def _step(s: FastState, mode: Mode, handle: Seat, number: int) -> None:
    """The next event: an operator ends, or a device may start what it waited for."""
    d, now = 0, s.devices[handle.device].next_s
    for other in range(1, s.m):
        its = s.devices[handle.device + index(other)].next_s
        sooner = its < now
        d = other if sooner else d
        now = its if sooner else now
    device = index(d)
    i = s.devices[handle.device + device].running
    s.devices[handle.device + device].running = s.n
    s.left[number] -= i != s.n
    s.last_s[number] = now
    sure = send(s, mode, handle, i, device, now)
    if now == np.inf:
        s.left[number] = 0
    elif not sure:
        s.left[number], s.last_s[number] = 0, UNSURE
    elif mode.in_order:
        go_on(s, mode, handle, device, now)
    else:
        choose(s, mode, handle, device, now)


@inlined
def _lay_out(s: FastState, mode: Mode, handle: Seat) -> None:
    """Idle devices and channels; every device looks for its first operator at time zero."""
    for lane in range(s.lanes):
        s.lane[handle.lane + index(lane)].free_s = 0.0
        s.lane[handle.lane + index(lane)].asked_s = -1.0
    begin = handle.known
    for d in range(s.m):
        device = s.devices[handle.device + index(d)]
        begin = index(begin + 1)
        device.begin = device.known_end = begin
        begin = index(begin + device.end)
        device.end = begin
        begin = index(begin + 1)
        device.early = device.seen = 0
        device.running = s.n
        device.next_s = 0.0
        clear(s.bits, s.tops, handle.device + index(d))
    for at in range(s.n):
        op = s.ops[handle.op + s.ranked[handle.op + index(at)]]
        op.position = at
        if mode.in_order:
            device = s.devices[handle.device + op.place]
            s.early[index(device.begin + device.early)] = s.ranked[handle.op + index(at)]
            device.early += 1
    if mode.in_order:
        for d in range(s.m):
            s.devices[handle.device + index(d)].early = 0
    else:
        for at in range(len(s.sources)):
            i = s.sources[index(at)]
            op = s.ops[handle.op + i]
            expect(s, handle.device + op.place, i, op.position, 0.0, True)
