"""The judge's fast path, compiled: a plan's makespan without its story.

The same play as `placewright.operators._kernels.run`, to the last bit, with fewer events. A
channel serves first come, first served, so the end of a transfer is known the moment it is asked
for; an operator's first possible start is known when its last producer ends. What is left to
happen is one event per operator, and the next one is the least of m numbers.

Where something takes no time at all, requests of one time can come in several rounds and overtake
each other. The play then says `UNSURE`, and the general one is asked.

What a processor would guess wrong is computed instead of branched on: on random placements that
takes half of the time away.
"""

from __future__ import annotations

import numpy as np

from placewright.arrays import IntArray
from placewright.compiled import inlined, lean
from placewright.operators._heaps import pop, push
from placewright.operators._modes import Mode
from placewright.operators._ranking import follow, line_up, rank_upward
from placewright.operators._ready_sets import include, take_first
from placewright.operators._swift import Swift
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
    if not s.sure:
        return UNSURE
    if not _placed(s, placement):
        return np.inf
    if len(order) == 0:
        rank_upward(s)
        line_up(s)
    else:
        follow(s, order)
    _lay_out(s, mode)
    last, left = 0.0, len(s.place)
    while left > 0:
        d, now = 0, s.next_s[0]
        for other in range(1, len(s.next_s)):
            its = s.next_s[other]
            sooner = its < now
            d = other if sooner else d
            now = its if sooner else now
        if now == np.inf:
            return np.inf
        i = s.running[d]
        s.running[d] = -1
        if i >= 0:
            left -= 1
            last = now
            if not send(s, mode, i, d, now):
                return UNSURE
        if mode.in_order:
            _go_on(s, d, now)
        else:
            _choose(s, d, now)
    return last


@inlined
def _placed(s: Swift, placement: IntArray) -> bool:
    """Operators on their devices; False if a device cannot run one."""
    m = len(s.next_s)
    for d in range(m + 1):
        s.base[d] = 0
    longest = 0.0
    for i in range(len(s.place)):
        d = placement[i]
        took = s.compute_s[i * m + d]
        s.place[i] = d
        s.took_s[i] = took
        s.waiting[i] = s.inputs[i]
        s.ready_s[i] = 0.0
        s.base[d + 1] += 1
        longest = max(longest, took)
    for d in range(m):
        s.base[d + 1] += s.base[d]
    return longest < np.inf


@inlined
def _lay_out(s: Swift, mode: Mode) -> None:
    """Idle devices and channels; every device looks for its first operator."""
    m = len(s.next_s)
    s.bits[:] = 0
    s.tops[:] = 0
    for lane in range(len(s.free_s)):
        s.free_s[lane] = 0.0
        s.asked_s[lane] = -1.0
    for d in range(m):
        s.listed[d] = s.ahead[d] = s.seen[d] = 0
        s.running[d] = -1
    for at in range(len(s.place)):
        i = s.ranked[at]
        d = s.place[i]
        if mode.in_order:
            s.future[s.base[d] + s.ahead[d]] = i
            s.ahead[d] += 1
        else:
            include(s.bits, s.tops, d, at, s.inputs[i] == 0)
    for d in range(m):
        if mode.in_order:
            s.ahead[d] = 0
            _go_on(s, d, 0.0)
        else:
            _choose(s, d, 0.0)


@inlined
def _go_on(s: Swift, d: int, now: float) -> None:
    """In order: a free device starts its next operator, or learns when it may."""
    s.next_s[d] = np.inf
    at = s.base[d] + s.ahead[d]
    if at < s.base[d + 1]:
        i = s.future[at]
        if s.waiting[i] == 0:
            if s.ready_s[i] <= now:
                s.ahead[d] += 1
                s.running[d] = i
                s.next_s[d] = now + s.took_s[i]
            else:
                s.next_s[d] = s.ready_s[i]


@inlined
def _choose(s: Swift, d: int, now: float) -> None:
    """A free device starts the first of what is ready, or learns when something will be."""
    soonest_s = _sift(s, d, now)
    first = take_first(s.bits, s.tops, d)
    s.next_s[d] = soonest_s
    if first >= 0:
        i = s.ranked[first]
        s.running[d] = i
        s.next_s[d] = now + s.took_s[i]


@inlined
def _sift(s: Swift, d: int, now: float) -> float:
    """Known operators whose time has come join the ready set; the next such time of the others."""
    base, ahead = s.base[d], s.ahead[d]
    while ahead > 0 and s.ready_s[s.future[base]] <= now:
        j = pop(s.future, base, ahead, s.ready_s, 0)
        ahead -= 1
        include(s.bits, s.tops, d, s.position[j], True)
    listed, kept, soonest_s = base + d, 0, np.inf
    for at in range(listed, listed + s.listed[d]):
        j = s.known[at]
        its = s.ready_s[j]
        late = its > now
        include(s.bits, s.tops, d, s.position[j], not late)
        s.known[listed + kept] = j
        kept += late
        soonest_s = its if late & (its < soonest_s) else soonest_s
    if kept > MOST_LISTED:
        for at in range(listed, listed + kept):
            push(s.future, base, ahead, s.ready_s, 0, s.known[at])
            ahead += 1
        kept = 0
    s.listed[d], s.ahead[d] = kept, ahead
    if ahead > 0:
        soonest_s = min(soonest_s, s.ready_s[s.future[base]])
    return soonest_s
