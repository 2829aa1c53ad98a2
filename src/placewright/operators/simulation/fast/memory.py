"""Bytes over after a play on the judge's fast path, compiled.

What is held when follows from when operators start and end and when tensors come: no event of
the play has to be played again. Only devices that all that ever comes to them would not fit are
looked at, and only those stretches of time in which a peak may stand.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.njit import index, inlined, inner
from placewright.operators.queues.heaps import pop, push
from placewright.operators.simulation.fast.state import FastState, Seat


@inner
def bytes_over(s: FastState, handle: Seat, last_s: float) -> int:
    """Bytes over the devices' memories, summed, after a play that counted them."""
    if not _crowded(s, handle):
        return 0
    _find_copies(s, handle)
    _keep_what_is_viewed(s)
    cells = index(len(s.cells) // s.m)
    _list_changes(s, handle, cells, cells / last_s if last_s > 0.0 else 0.0)
    over = 0
    for d in range(s.m):
        its = s.devices[handle.device + index(d)]
        if its.all > s.memory_bytes[index(d)]:
            over += _over(s, its.held, s.memory_bytes[index(d)], index(d * cells), cells)
    return over


@inlined
def _crowded(s: FastState, handle: Seat) -> bool:
    """Whether all that lives on a device or ever comes to it might be more than its memory."""
    for d in range(s.m):
        its = s.devices[handle.device + index(d)]
        its.held = its.all = its.seen = 0
    for i in range(s.n):
        its = s.devices[handle.device + s.ops[handle.op + index(i)].place]
        its.held += s.resident_bytes[index(i)]
    for k in range(len(s.tensors)):
        tensor = s.tensors[index(k)]
        home = s.devices[handle.device + s.ops[handle.op + tensor.maker].place]
        home.all += tensor.home_bytes
        home.seen = k + 1
        for e in range(tensor.first, tensor.last):
            to = s.devices[handle.device + s.ops[handle.op + s.edges[e].consumer].place]
            to.all += tensor.kept_bytes if to.seen != index(k + 1) else 0
            to.seen = k + 1
    full = False
    for d in range(s.m):
        its = s.devices[handle.device + index(d)]
        its.all += its.held
        full |= its.all > s.memory_bytes[index(d)]
    return full


@inlined
def _end_s(s: FastState, handle: Seat, i: int) -> float:
    return s.start_s[handle.op + i] + s.ops[handle.op + i].took_s  # type: ignore[no-any-return]


@inlined
def _find_copies(s: FastState, handle: Seat) -> None:
    """Which copy each edge reads, and until when each is held by operators and transfers."""
    for d in range(s.m):
        s.devices[handle.device + index(d)].seen = 0
    for k in range(len(s.tensors)):
        tensor, made = s.tensors[index(k)], index(len(s.edges) + k)
        home, until_s = s.ops[handle.op + tensor.maker].place, _end_s(s, handle, tensor.maker)
        s.devices[handle.device + home].seen = k + 1
        s.devices[handle.device + home].request = made
        for e in range(tensor.first, tensor.last):
            j = s.edges[e].consumer
            to = s.devices[handle.device + s.ops[handle.op + j].place]
            if to.seen != index(k + 1):
                to.seen, to.request = k + 1, e
                s.until_s[e] = 0.0
                until_s = max(until_s, s.came_s[handle.edge + e])
            copy = to.request
            s.copy[e] = copy
            if copy == made:
                until_s = max(until_s, _end_s(s, handle, j))
            else:
                s.until_s[copy] = max(s.until_s[copy], _end_s(s, handle, j))
        s.until_s[made] = until_s


@inlined
def _keep_what_is_viewed(s: FastState) -> None:
    """What has a view is held as long as that, through views of views."""
    for a in range(len(s.views)):
        view = s.views[index(a)]
        copy = s.copy[view.edge]
        s.until_s[copy] = max(s.until_s[copy], s.until_s[index(len(s.edges) + view.tensor)])


@inlined
def _list_changes(s: FastState, handle: Seat, cells: int, per_second: float) -> None:
    """Changes of crowded devices by cells of time."""
    for at in range(len(s.cells)):
        cell = s.cells[index(at)]
        cell.net = cell.gain = cell.first = 0
    count = index(1)
    for k in range(len(s.tensors)):
        tensor = s.tensors[index(k)]
        d = s.ops[handle.op + tensor.maker].place
        if tensor.home_bytes > 0 and s.devices[handle.device + d].all > s.memory_bytes[d]:
            first, last = index(d * cells), cells
            from_s, until_s = s.start_s[handle.op + tensor.maker], s.until_s[len(s.edges) + k]
            _change(s, first, last, per_second, count, from_s, tensor.home_bytes)
            _change(s, first, last, per_second, index(count + 1), until_s, -tensor.home_bytes)
            count = index(count + 2)
        for e in range(tensor.first, tensor.last):
            d = s.ops[handle.op + s.edges[e].consumer].place
            if s.copy[e] == e and s.devices[handle.device + d].all > s.memory_bytes[d]:
                first, last = index(d * cells), cells
                from_s, until_s = s.came_s[handle.edge + e], s.until_s[e]
                _change(s, first, last, per_second, count, from_s, tensor.kept_bytes)
                _change(s, first, last, per_second, index(count + 1), until_s, -tensor.kept_bytes)
                count = index(count + 2)


@inlined
def _change(
    s: FastState, first: int, cells: int, per_second: float, at: int, at_s: float, change: int
) -> None:
    """One more change in the list of its cell."""
    cell = s.cells[first + index(min(np.int64(cells) - 1, int(at_s * per_second)))]
    its = s.changes[at]
    its.at_s = at_s
    its.bytes = change
    its.next = cell.first
    cell.first = at
    cell.net += change
    cell.gain += max(change, 0)


@inner
def _over(s: FastState, held: int, memory: int, first: int, cells: int) -> int:
    """How far a device's highest peak is over its memory."""
    peak = max(held, memory)
    for c in range(cells):
        cell = s.cells[first + c]
        if held + cell.gain > peak:
            peak = max(peak, _peak_within(s, held, cell.first))
        held += cell.net
    return peak - memory


@inlined
def _peak_within(s: FastState, held: int, first: int) -> int:
    """The highest level over any time within a cell; what changes at one time changes at once."""
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
