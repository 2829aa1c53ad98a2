"""Value and excess bytes of placements, compiled: used by searches and batches.

The fast simulator runs first; where it is unsure, and for serial problems, the one by rounds.
Kernels take what that one needs as an argument that may be ``None``, so that it is compiled into
them only for problems that need it.

*Bytes* are counted after a simulation, whichever it was (rules M1 to M7).
When a copy of a tensor is held follows from when operators start and end and when transfers
arrive, so no event has to be simulated again. Only devices that could not hold everything at once
are looked at, and on these only stretches of time (*cells*) that could contain a peak above their
limit, the memory: the changes of a cell are sorted by time only if the bytes held before it plus
all that comes within it exceed the highest level so far.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import (
    index,
    njit_inline,
    njit_internal,
    njit_no_refcount,
    njit_nogil,
)
from placewright.operators.queues import pop, push
from placewright.operators.simulation.fast import (
    UNSURE,
    find_copies,
    offsets_of,
    prepare,
    simulate_prepared,
)
from placewright.operators.simulation.fast_state import FastState, Offsets
from placewright.operators.simulation.inputs import Mode
from placewright.operators.simulation.rounds import Rounds, period, simulate


@njit_inline
def score(
    s: FastState,
    rounds: Rounds | None,
    mode: Mode,
    place: IntArray,
    order: IntArray,
    load_s: FloatArray,
) -> tuple[float, int]:
    """Value and bytes over; ``inf`` and 0 where a placement cannot be simulated.

    Bytes are counted with `mode.memory` only. `load_s`: see `run_many`.
    """
    value, over = UNSURE, 0
    if _has_events(s, mode, load_s):
        prepare(s, mode, place, order, 0)
        simulate_prepared(s, mode, 1)
        value, over = _simulated(s, mode, 0)
    return _finished(s, rounds, mode, place, order, load_s, value, over)


@njit_inline
def _needs_simulation(s: FastState, mode: Mode, load_s: FloatArray) -> bool:
    """Whether the loads alone do not suffice."""
    return len(load_s) == 0 or mode.memory or mode.in_order or not s.all_linked


@njit_inline
def _has_events(s: FastState, mode: Mode, load_s: FloatArray) -> bool:
    """Whether the fast simulator is asked: it knows no serial mode."""
    return _needs_simulation(s, mode, load_s) and not mode.serial


@njit_inline
def _simulated(s: FastState, mode: Mode, number: int) -> tuple[float, int]:
    """Makespan and bytes over of simulation `number`, or `UNSURE` and 0."""
    value, over = s.makespan_s[number], 0
    if mode.memory and UNSURE < value < np.inf:
        over = bytes_over(s, offsets_of(s, number), value)
    return value, over


@njit_inline
def _finished(
    s: FastState,
    rounds: Rounds | None,
    mode: Mode,
    place: IntArray,
    order: IntArray,
    load_s: FloatArray,
    value: float,
    over: int,
) -> tuple[float, int]:
    """What the fast simulator found, or the one by rounds where that is unsure; then the loads."""
    # Numba does not compile it for an argument that is None.
    if rounds is not None:
        if _needs_simulation(s, mode, load_s) and value == UNSURE:
            value, over = np.inf, 0
            if simulate(s, rounds, mode, place, order):
                value, over = _simulated(s, mode, 0)
        if len(load_s) > 0 and value < np.inf:
            value = period(s, rounds, mode, place, load_s)
    return value, over


@njit_nogil
def run_many(
    s: FastState,
    rounds: Rounds | None,
    mode: Mode,
    load_s: FloatArray,
    placements: IntArray,
    order: IntArray,
    value_s: FloatArray,
    violation_bytes: IntArray,
) -> None:
    """`score` for every row; as many as the fast simulator interleaves are simulated at once.

    With and without `rounds` it is compiled on its own, when it is needed first.

    Parameters
    ----------
    rounds
        ``None``: rows of which the fast simulator is unsure get the value `UNSURE`.
    load_s
        Scratch of `period` where values are those (throughput), which needs `rounds`; empty: values
        are makespans.
    """
    interleaved, rows = len(s.unfinished), len(placements)
    for first in range(0, rows, interleaved):
        count = min(interleaved, rows - first)
        events = _has_events(s, mode, load_s)
        if events:
            for number in range(count):
                prepare(s, mode, placements[first + number], order, number)
            simulate_prepared(s, mode, count)
        for number in range(count):
            value, over, place = UNSURE, 0, placements[first + number]
            if events:
                value, over = _simulated(s, mode, number)
            value, over = _finished(s, rounds, mode, place, order, load_s, value, over)
            value_s[first + number], violation_bytes[first + number] = value, over


@njit_internal
def bytes_over(s: FastState, base: Offsets, makespan_s: float) -> int:
    """Bytes over the devices' memories, summed, after a simulation with `Mode.memory`."""
    over = 0
    if count_peaks(s, base, makespan_s, s.memory_bytes):
        for d in range(s.m):
            over += s.peak_bytes[index(d)] - s.memory_bytes[index(d)]
    return over


@njit_no_refcount
def peaks(s: FastState, limit_bytes: IntArray) -> None:
    """Set ``s.peak_bytes`` after a simulation of one placement.

    `limit_bytes`: shape (m,), negative: all peaks are of interest.
    """
    count_peaks(s, offsets_of(s, 0), s.makespan_s[0], limit_bytes)


@njit_internal
def count_peaks(s: FastState, base: Offsets, makespan_s: float, limit_bytes: IntArray) -> bool:
    """Set the peak, or the limit where that is more, of every device; False if no peak can be."""
    if not _may_be_over(s, base, limit_bytes):
        return False
    find_copies(s, base, True)
    _hold_viewed(s)
    cells = index(len(s.cells) // s.m)
    per_second = cells / makespan_s if makespan_s > 0.0 else 0.0
    _list_changes(s, base, cells, per_second, limit_bytes)
    for d in range(s.m):
        its, limit = s.devices[base.device + index(d)], limit_bytes[index(d)]
        s.peak_bytes[index(d)] = limit
        # The others were not listed, and cannot be over.
        if its.all_bytes > limit:
            s.peak_bytes[index(d)] = _peak(s, its.held_bytes, limit, index(d * cells), cells)
    return True


@njit_inline
def _may_be_over(s: FastState, base: Offsets, limit_bytes: IntArray) -> bool:
    """Whether all that lives on a device or ever comes to it might be more than its limit."""
    for d in range(s.m):
        its = s.devices[base.device + index(d)]
        its.held_bytes = its.all_bytes = its.last_tensor = 0
    for i in range(s.n):
        its = s.devices[base.device + s.ops[base.op + index(i)].device]
        its.held_bytes += s.resident_bytes[index(i)]
    for k in range(len(s.tensors)):
        tensor = s.tensors[index(k)]
        home = s.devices[base.device + s.ops[base.op + tensor.producer].device]
        home.all_bytes += tensor.home_bytes
        home.last_tensor = k + 1
        for e in range(tensor.first, tensor.last):
            to = s.devices[base.device + s.ops[base.op + s.edges[e].consumer].device]
            to.all_bytes += tensor.kept_bytes if to.last_tensor != index(k + 1) else 0
            to.last_tensor = k + 1
    full = False
    for d in range(s.m):
        its = s.devices[base.device + index(d)]
        its.all_bytes += its.held_bytes
        full |= its.all_bytes > limit_bytes[index(d)]
    return full


@njit_inline
def _hold_viewed(s: FastState) -> None:
    """What has a view is held as long as that, through views of views."""
    for a in range(len(s.views)):
        # Each view comes before its base, so that its own time is final here. What its producer
        # reads is the base's copy on that device, made or received.
        view = s.views[index(a)]
        copy = s.copy[view.edge]
        s.until_s[copy] = max(s.until_s[copy], s.until_s[index(len(s.edges) + view.tensor)])


@njit_inline
def _list_changes(
    s: FastState, base: Offsets, cells: int, per_second: float, limit_bytes: IntArray
) -> None:
    """Changes of crowded devices by cells of time."""
    for at in range(len(s.cells)):
        cell = s.cells[index(at)]
        cell.net = cell.gain = cell.first = 0
    # Row 0 of `changes` stands for the end of a cell's list.
    count = index(1)
    for k in range(len(s.tensors)):
        tensor = s.tensors[index(k)]
        d = s.ops[base.op + tensor.producer].device
        if tensor.home_bytes > 0 and s.devices[base.device + d].all_bytes > limit_bytes[d]:
            first, last = index(d * cells), cells
            from_s, until_s = s.start_s[base.op + tensor.producer], s.until_s[len(s.edges) + k]
            _add_change(s, first, last, per_second, count, from_s, tensor.home_bytes)
            _add_change(s, first, last, per_second, index(count + 1), until_s, -tensor.home_bytes)
            count = index(count + 2)
        for e in range(tensor.first, tensor.last):
            d = s.ops[base.op + s.edges[e].consumer].device
            if s.copy[e] == e and s.devices[base.device + d].all_bytes > limit_bytes[d]:
                first, last = index(d * cells), cells
                from_s, until_s = s.arrival_s[base.edge + e], s.until_s[e]
                _add_change(s, first, last, per_second, count, from_s, tensor.kept_bytes)
                _add_change(
                    s, first, last, per_second, index(count + 1), until_s, -tensor.kept_bytes
                )
                count = index(count + 2)


@njit_inline
def _add_change(
    s: FastState, first: int, cells: int, per_second: float, at: int, at_s: float, change: int
) -> None:
    """One more change in the list of its cell."""
    # Infinite times are all in the first cell, as all others are then: ``nan`` is no number of one.
    cell = s.cells[first + index(max(0, min(np.int64(cells) - 1, int(at_s * per_second))))]
    # Equal times share a cell and later times never come before it, as the product is monotone.
    its = s.changes[at]
    its.at_s = at_s
    its.bytes = change
    its.next = cell.first
    cell.first = at
    cell.net += change
    cell.gain += max(change, 0)


@njit_internal
def _peak(s: FastState, held: int, limit: int, first: int, cells: int) -> int:
    """A device's highest peak, or its limit where that is more."""
    peak = max(held, limit)
    for c in range(cells):
        cell = s.cells[first + c]
        # Without what the cell releases this is the most that could be held in it.
        if held + cell.gain > peak:
            peak = max(peak, _peak_within(s, held, cell.first))
        held += cell.net
    return peak


@njit_inline
def _peak_within(s: FastState, held: int, first: int) -> int:
    """The highest level over any time within a cell; what changes at one time changes at once."""
    # A level counts once time passes over it (rule M4): where a later change is met, or at the
    # end of the cell, since the next change is in a later cell.
    size, at = 0, first
    while at != 0:
        push(s.by_time, index(0), size, s.change_s, index(0), at)
        size += 1
        at = s.changes[at].next
    peak, now = held, -1.0
    while size > 0:
        its = s.changes[pop(s.by_time, index(0), size, s.change_s, index(0))]
        size -= 1
        if its.at_s > now:
            peak = max(peak, held)
            now = its.at_s
        held += its.bytes
    return max(peak, held)
