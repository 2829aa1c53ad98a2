"""What a free device does next on the judge's fast path, compiled."""

from __future__ import annotations

import numpy as np

from placewright.numerics.njit import index, inlined
from placewright.operators.queues.heaps import pop, push
from placewright.operators.queues.ready_sets import include, take_first
from placewright.operators.simulation.fast.state import FastState, Seat
from placewright.operators.simulation.modes import Mode

MOST_LISTED = 32
"""Known operators of a device that are looked through one by one; more of them stand in a heap."""


@inlined
def expect(s: FastState, device: int, i: int, position: int, ready_s: float, known: bool) -> None:
    """All inputs of an operator are on their way or there, if `known`."""
    its = s.devices[device]
    end = its.known_end
    row = s.known[end]
    its.known_end = end + known
    row.ready_s = ready_s
    row.position = position
    row.op = i


@inlined
def go_on(s: FastState, mode: Mode, handle: Seat, device: int, now: float) -> None:
    """In order: a free device starts its next operator, or learns when it may."""
    its = s.devices[handle.device + device]
    its.next_s = np.inf
    at = index(its.begin + its.early)
    if at < its.end:
        i = s.early[at]
        op = s.ops[handle.op + i]
        if op.waiting == 0:
            if op.ready_s <= now:
                its.early += 1
                its.running = i
                its.next_s = now + op.took_s
                if mode.memory:
                    s.start_s[handle.op + i] = now
            else:
                its.next_s = op.ready_s


@inlined
def choose(s: FastState, mode: Mode, handle: Seat, device: int, now: float) -> None:
    """A free device starts the first of what is ready, or learns when something will be."""
    row = handle.device + device
    its = s.devices[row]
    soonest_s = _sift(s, handle, row, now)
    first = take_first(s.bits, s.tops, row)
    found = first >= 0
    i = s.ranked[handle.op + index(max(first, 0))]
    its.running = i if found else index(s.n)
    its.next_s = now + s.ops[handle.op + i].took_s if found else soonest_s
    if mode.memory and found:
        s.start_s[handle.op + i] = now


@inlined
def _sift(s: FastState, handle: Seat, device: int, now: float) -> float:
    """Known operators whose time has come join the ready set; the next such time of the others."""
    its = s.devices[device]
    begin, soonest_s = its.begin, np.inf
    if its.early > 0:
        soonest_s = _look_ahead(s, handle, device, now)
    kept = begin
    for x in range(begin, its.known_end):
        row, hole = s.known[x], s.known[kept]
        its_s, at, i = row.ready_s, row.position, row.op
        late = its_s > now
        include(s.bits, s.tops, device, at, not late)
        hole.ready_s = its_s
        hole.position = at
        hole.op = i
        kept = index(kept + late)
        soonest_s = its_s if late & (its_s < soonest_s) else soonest_s
    its.known_end = kept
    if kept - begin > MOST_LISTED:
        _put_away(s, handle, device)
    return soonest_s


@inlined
def _look_ahead(s: FastState, handle: Seat, device: int, now: float) -> float:
    """The heap's part of `_sift`."""
    its = s.devices[device]
    while its.early > 0 and s.ready_s[handle.op + s.early[its.begin]] <= now:
        i = pop(s.early, its.begin, its.early, s.ready_s, handle.op)
        its.early -= 1
        include(s.bits, s.tops, device, s.ops[handle.op + i].position, True)
    return s.ready_s[handle.op + s.early[its.begin]] if its.early > 0 else np.inf


@inlined
def _put_away(s: FastState, handle: Seat, device: int) -> None:
    """What is listed goes into the heap."""
    its = s.devices[device]
    for x in range(its.begin, its.known_end):
        push(s.early, its.begin, its.early, s.ready_s, handle.op, s.known[x].op)
        its.early += 1
    its.known_end = its.begin
