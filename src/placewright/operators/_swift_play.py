"""The judge's fast path, compiled: makespans without their story.

The same play as `placewright.operators._kernels.run`, to the last bit, with fewer events. A
channel serves first come, first served, so the end of a transfer is known the moment it is asked
for; an operator's first possible start is known when its last producer ends. What is left to
happen is one event per operator, and the next one is the least of m numbers.

Where something takes no time at all, requests of one time can come in several rounds and overtake
each other. The play then says `UNSURE`, and the general one is asked.

Two things keep a processor busy. What it would guess wrong is computed instead of branched on;
and since every event waits for the one before, some plays take turns event by event.
"""

from __future__ import annotations

import numpy as np

from placewright.arrays import IntArray
from placewright.compiled import index, inlined, inner, lean
from placewright.operators._heaps import pop, push
from placewright.operators._modes import Mode
from placewright.operators._ranking import follow, line_up, rank_upward
from placewright.operators._ready_sets import clear, include, take_first
from placewright.operators._swift import Seat, Swift
from placewright.operators._swift_send import send

UNSURE = -1.0
"""Said instead of a makespan where only the general play can tell."""

MOST_LISTED = 32
"""Known operators of a device that are looked through one by one; more of them stand in a heap."""


@lean
def play(s: Swift, mode: Mode, placement: IntArray, order: IntArray) -> float:
    """Makespan of a placement, ``inf`` where it cannot be played, or `UNSURE`.

    Takes every mode but serial; counts no memory.
    """
    sit(s, mode, placement, order, 0)
    play_seated(s, mode, 1)
    return s.last_s[0]  # type: ignore[no-any-return]


@inner
def sit(s: Swift, mode: Mode, placement: IntArray, order: IntArray, number: int) -> None:
    """Take a seat: ready to be played, or already known not to be playable."""
    n = len(s.inputs)
    seat = _seat(s, number)
    s.left[number], s.last_s[number] = 0, UNSURE
    if not s.sure:
        return
    if not _placed(s, seat, placement):
        s.last_s[number] = np.inf
        return
    if len(order) == 0:
        line_up(s, seat, rank_upward(s, seat))
    else:
        follow(s, seat, order)
    _lay_out(s, mode, seat)
    s.left[number] = n


@inner
def play_seated(s: Swift, mode: Mode, count: int) -> None:
    """Play the first `count` seats to the end; `last_s` has the makespans."""
    busy = True
    while busy:
        busy = False
        for number in range(count):
            if s.left[number] > 0:
                _step(s, mode, _seat(s, number), number)
                busy = True


@inlined
def _seat(s: Swift, number: int) -> Seat:
    """Where a play has its state."""
    lanes = s.channels + s.devices
    ops, devices = number * len(s.inputs), number * s.devices
    return Seat(index(ops), index(devices), index(number * lanes))


@inlined
def _step(s: Swift, mode: Mode, seat: Seat, number: int) -> None:
    """The next event: an operator ends, or a device may start what it waited for."""
    first = seat.device
    d, now = 0, s.next_s[first]
    for other in range(1, s.devices):
        its = s.next_s[first + other]
        sooner = its < now
        d = other if sooner else d
        now = its if sooner else now
    i = s.running[first + d]
    s.running[first + d] = -1
    s.last_s[number] = now
    sure = True
    if i >= 0:
        s.left[number] -= 1
        sure = send(s, mode, seat, index(i), d, now)
    if now == np.inf:
        s.left[number] = 0
    elif not sure:
        s.left[number], s.last_s[number] = 0, UNSURE
    elif mode.in_order:
        _go_on(s, seat, d, now)
    else:
        _choose(s, seat, d, now)


@inlined
def _placed(s: Swift, seat: Seat, placement: IntArray) -> bool:
    """Operators on their devices; False if a device cannot run one."""
    m = s.devices
    for d in range(seat.device, seat.device + m):
        s.end[d] = 0
    longest = 0.0
    for i in range(len(s.inputs)):
        d = placement[i]
        took = s.compute_s[i * m + d]
        s.place[seat.op + i] = d
        s.took_s[seat.op + i] = took
        s.waiting[seat.op + i] = s.inputs[i]
        s.ready_s[seat.op + i] = 0.0
        s.end[seat.device + d] += 1
        longest = max(longest, took)
    begin = seat.op
    for d in range(seat.device, seat.device + m):
        s.base[d] = begin
        begin += s.end[d]
        s.end[d] = begin
    return longest < np.inf


@inlined
def _lay_out(s: Swift, mode: Mode, seat: Seat) -> None:
    """Idle devices and channels; every device looks for its first operator at time zero."""
    m = s.devices
    for lane in range(seat.lane, seat.lane + s.channels + m):
        s.free_s[lane] = 0.0
        s.asked_s[lane] = -1.0
    for d in range(seat.device, seat.device + m):
        s.ahead[d] = s.seen[d] = 0
        s.known_end[d] = s.base[d] + d
        s.running[d] = -1
        s.next_s[d] = 0.0
        clear(s.bits, s.tops, d)
    for at in range(len(s.inputs)):
        i = s.ranked[seat.op + at]
        d = seat.device + s.place[seat.op + i]
        s.position[seat.op + i] = at
        if mode.in_order:
            s.future[s.base[d] + s.ahead[d]] = i
            s.ahead[d] += 1
        else:
            include(s.bits, s.tops, d, at, s.inputs[i] == 0)
    if mode.in_order:
        for d in range(seat.device, seat.device + m):
            s.ahead[d] = 0


@inlined
def _go_on(s: Swift, seat: Seat, device: int, now: float) -> None:
    """In order: a free device starts its next operator, or learns when it may."""
    d = index(seat.device + device)
    s.next_s[d] = np.inf
    at = s.base[d] + s.ahead[d]
    if at < s.end[d]:
        i = s.future[at]
        if s.waiting[seat.op + i] == 0:
            if s.ready_s[seat.op + i] <= now:
                s.ahead[d] += 1
                s.running[d] = i
                s.next_s[d] = now + s.took_s[seat.op + i]
            else:
                s.next_s[d] = s.ready_s[seat.op + i]


@inlined
def _choose(s: Swift, seat: Seat, device: int, now: float) -> None:
    """A free device starts the first of what is ready, or learns when something will be."""
    d = index(seat.device + device)
    soonest_s = _sift(s, seat, d, now)
    first = take_first(s.bits, s.tops, d)
    s.next_s[d] = soonest_s
    if first >= 0:
        i = s.ranked[seat.op + first]
        s.running[d] = i
        s.next_s[d] = now + s.took_s[seat.op + i]


@inlined
def _sift(s: Swift, seat: Seat, d: int, now: float) -> float:
    """Known operators whose time has come join the ready set; the next such time of the others."""
    base, ahead = s.base[d], s.ahead[d]
    while ahead > 0 and s.ready_s[seat.op + s.future[base]] <= now:
        j = pop(s.future, base, ahead, s.ready_s, seat.op)
        ahead -= 1
        include(s.bits, s.tops, d, s.position[seat.op + j], True)
    listed, kept, soonest_s = base + d, 0, np.inf
    for at in range(listed, s.known_end[d]):
        j = s.known[at]
        its = s.ready_s[seat.op + j]
        late = its > now
        include(s.bits, s.tops, d, s.position[seat.op + j], not late)
        s.known[listed + kept] = j
        kept += late
        soonest_s = its if late & (its < soonest_s) else soonest_s
    if kept > MOST_LISTED:
        for at in range(listed, listed + kept):
            push(s.future, base, ahead, s.ready_s, seat.op, s.known[at])
            ahead += 1
        kept = 0
    s.known_end[d], s.ahead[d] = listed + kept, ahead
    if ahead > 0:
        soonest_s = min(soonest_s, s.ready_s[seat.op + s.future[base]])
    return soonest_s
