"""Fast simulator, compiled: the makespan only, no trace.

It follows the rules of docs/reference/simulation.md to the last bit, as the full simulator does,
with fewer events. A channel serves first come, first served (rule C4), so the end of a transfer is
known the moment it is requested: ``max(now, channel.free_s)`` plus its duration. The time from
which an operator is ready is therefore known when its last producer ends. What is left is one event
per operator and one per wait of a device; the next one is the least of m times.

**When the result is unsure.** Devices take their events one by one, not in the rounds of rule E3.
That makes no difference unless a transfer arrives at the instant at which it starts (in a later
round of it), or two operators that end at one instant request one channel: the best reader comes
first, and the operator that is handled later may have it. The fast simulator returns `UNSURE` in
both cases, and the full one runs instead. It also handles pairs of devices without a link.

**Why it is written as it is.** Branches that a processor would guess wrong are computed instead,
as ``where`` expressions and rows that are written before it is known whether they count. Since
every event depends on the one before, some simulations are interleaved event by event.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import index, njit_inline, njit_internal, njit_no_refcount
from placewright.operators.queues.ready_sets import clear
from placewright.operators.simulation.fast.events import (
    add_pending,
    send,
    start_in_order,
    start_ready,
)
from placewright.operators.simulation.fast.ranking import follow_order, rank_upward, sort_by_rank
from placewright.operators.simulation.fast.state import FastState, Offsets
from placewright.operators.simulation.inputs import Mode

UNSURE = -1.0
"""Returned instead of a makespan where the full simulator has to run."""


@njit_no_refcount
def simulate(s: FastState, mode: Mode, placement: IntArray, order: IntArray) -> float:
    """Makespan of a placement, ``inf`` where it cannot be simulated, or `UNSURE`.

    For every mode but serial. With `mode.memory`,
    `placewright.operators.simulation.fast.memory.bytes_over` can be called afterwards.
    """
    prepare(s, mode, placement, order, 0)
    simulate_prepared(s, mode, 1)
    return s.makespan_s[0]  # type: ignore[no-any-return]


@njit_internal
def prepare(s: FastState, mode: Mode, placement: IntArray, order: IntArray, number: int) -> None:
    """Lay out a placement as simulation `number`.

    Its makespan is ``inf`` if a device cannot run one of its operators.
    """
    base = offsets_of(s, number)
    s.unfinished[number], s.makespan_s[number] = 0, UNSURE
    if not s.all_linked:
        return
    for d in range(s.m):
        # Counts the operators of each device until `_reset` makes stretches of them.
        s.devices[base.device + index(d)].end = 0
    if len(order) == 0:
        least = rank_upward(s, base, placement)
        possible = least > -np.inf
        if possible:
            sort_by_rank(s, base, least)
    else:
        possible = follow_order(s, base, placement, order) < np.inf
    if not possible:
        s.makespan_s[number] = np.inf
        return
    _reset(s, mode, base)
    s.unfinished[number] = s.n


@njit_internal
def simulate_prepared(s: FastState, mode: Mode, count: int) -> None:
    """Simulate the first `count` placements that were prepared, one event of each at a time."""
    busy = True
    while busy:
        busy = False
        for number in range(count):
            if s.unfinished[number] > 0:
                _step(s, mode, offsets_of(s, number), number)
                busy = True


@njit_inline
def offsets_of(s: FastState, number: int) -> Offsets:
    """First rows of simulation `number`."""
    return Offsets(
        op=index(number * (s.n + 1)),
        device=index(number * s.m),
        channel=index(number * s.channels),
        pending=index(number * (s.n + 2 * s.m)),
        edge=index(number * len(s.edges)),
    )


@njit_inline
def _step(s: FastState, mode: Mode, base: Offsets, number: int) -> None:
    """Take the next event: an operator ends, or a device may start what it waited for."""
    # Events are per device, so that the least of m times replaces a heap. Ties go to the lower
    # device; which one is first makes no difference unless the result is unsure.
    d, now = 0, s.devices[base.device].next_s
    for other in range(1, s.m):
        its = s.devices[base.device + index(other)].next_s
        sooner = its < now
        d = other if sooner else d
        now = its if sooner else now
    device = index(d)
    i = s.devices[base.device + device].running
    # Idle before it sends: what it makes may be read on the device itself.
    s.devices[base.device + device].running = s.n
    s.unfinished[number] -= i != s.n
    # Wakings of idle devices set it too, but the last event of all is an end.
    s.makespan_s[number] = now
    certain = send(s, mode, base, i, device, now)
    if now == np.inf:  # nothing is left to happen: the order contradicts the graph
        s.unfinished[number] = 0
    elif not certain:
        s.unfinished[number], s.makespan_s[number] = 0, UNSURE
    elif mode.in_order:
        start_in_order(s, mode, base, device, now)
    else:
        start_ready(s, mode, base, device, now)


@njit_inline
def _reset(s: FastState, mode: Mode, base: Offsets) -> None:
    """Idle devices and channels; every device looks for its first operator at time zero.

    ``device.end`` is the number of its operators before, the end of its stretch after.
    """
    for channel in range(s.channels):
        s.channel[base.channel + index(channel)].free_s = 0.0
        s.channel[base.channel + index(channel)].requested_s = -1.0
    begin = base.pending
    for d in range(s.m):
        device = s.devices[base.device + index(d)]
        # A spare row, the stretch, and another spare row: see the drawing in `fast.state`.
        begin = index(begin + 1)
        device.begin = device.pending_end = begin
        begin = index(begin + device.end)
        device.end = begin
        begin = index(begin + 1)
        device.heap_size = device.last_tensor = 0
        device.running = s.n
        # Every device is woken at 0.0; one without ready operators then sleeps.
        device.next_s = 0.0
        clear(s.bits, s.tops, base.device + index(d))
    for at in range(s.n):
        op = s.ops[base.op + s.ranked[base.op + index(at)]]
        op.position = at
        if mode.in_order:
            device = s.devices[base.device + op.device]
            s.pending_heap[index(device.begin + device.heap_size)] = s.ranked[base.op + index(at)]
            device.heap_size += 1
    if mode.in_order:
        for d in range(s.m):
            s.devices[base.device + index(d)].heap_size = 0
    else:
        for at in range(len(s.sources)):
            i = s.sources[index(at)]
            op = s.ops[base.op + i]
            add_pending(s, base.device + op.device, i, op.position, 0.0, True)
