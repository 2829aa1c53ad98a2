"""Fast simulator, compiled: one event per operator and per wait of a device.

It follows the rules of docs/reference/simulation.md to the last bit, as the simulator by rounds
does, with fewer events. A channel serves first come, first served (rule C4), so the end of a
transfer is known the moment it is requested: ``max(now, channel.free_s)`` plus its duration. The
time from which an operator is ready is therefore known when its last producer ends. What is left is
one event per operator and one per wait of a device; the next one is the least of m times.

**When the result is unsure.** Devices take their events one by one, not in the rounds of rule E3.
That makes no difference unless a transfer arrives at the instant at which it starts (in a later
round of it), or two operators that end at one instant request one channel: the best reader comes
first, and the operator that is handled later may have it. The fast simulator returns `UNSURE` in
both cases, and the one by rounds runs instead. It also handles pairs of devices without a link.

**Why it is written as it is.** Branches that a processor would guess wrong are computed instead,
as ``where`` expressions and rows that are written before it is known whether they count. Since
every event depends on the one before, some simulations are interleaved event by event.

Sorting takes as long as simulating if it compares; ranks are spread over n cells of equal width
instead, and only what shares a cell is compared.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import index, njit_inline, njit_internal, njit_no_refcount
from placewright.operators.queues import clear, include, pop, push, take_first
from placewright.operators.simulation.fast_state import FastState, Offsets
from placewright.operators.simulation.inputs import Mode

UNSURE = -1.0
"""Returned instead of a makespan where the simulator by rounds has to run."""


@njit_no_refcount
def simulate(s: FastState, mode: Mode, placement: IntArray, order: IntArray) -> float:
    """Makespan of a placement, ``inf`` where it cannot be simulated, or `UNSURE`.

    For every mode but serial. With `mode.memory`,
    `placewright.operators.simulation.scores.bytes_over` can be called afterwards.
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
    if lay_out(s, mode, base, placement, order):
        s.unfinished[number] = s.n
    else:
        s.makespan_s[number] = np.inf


@njit_internal
def lay_out(s: FastState, mode: Mode, base: Offsets, placement: IntArray, order: IntArray) -> bool:
    """Set order, devices and queues; False if a device cannot run one of its operators."""
    for d in range(s.m):
        # Counts the operators of each device until `_reset` makes stretches of them.
        s.devices[base.device + index(d)].end = 0
    if len(order) == 0:
        least = rank_upward(s, base, placement)
        possible = least > -np.inf
        sort_by_rank(s, base, least)
    else:
        possible = follow_order(s, base, placement, order) < np.inf
    _reset(s, mode, base)
    return possible


@njit_internal
def simulate_prepared(s: FastState, mode: Mode, count: int) -> None:
    """Simulate the first `count` placements that were prepared, one event of each at a time."""
    busy = True
    while busy:
        busy = False
        for number in range(count):
            if s.unfinished[number] == 0:
                continue
            busy = True
            base = offsets_of(s, number)
            d, now = _next_event(s, base)
            device = index(d)
            i = s.devices[base.device + device].running
            # Idle before it sends: what it makes may be read on the device itself.
            s.devices[base.device + device].running = s.n
            s.unfinished[number] -= i != s.n
            # Wakings of idle devices set it too, but the last event of all is an end.
            s.makespan_s[number] = now
            # The same requests either way: where no two can meet on one channel, or channels carry
            # any number of transfers, they need not be sorted by best reader first.
            if s.static[i].separate == 1 or not mode.contended:
                certain = _send_separately(s, mode, base, i, device, now)
            else:
                certain = _send_contended(s, mode, base, i, device, now)
            if now == np.inf:  # nothing is left to happen: the order contradicts the graph
                s.unfinished[number] = 0
            elif not certain:
                s.unfinished[number], s.makespan_s[number] = 0, UNSURE
            elif mode.in_order:
                start_in_order(s, mode, base, device, now)
            else:
                start_ready(s, mode, base, device, now)


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
def _next_event(s: FastState, base: Offsets) -> tuple[int, float]:
    """The device of the next event, and its time: an operator ends, or the device may start one."""
    # Events are per device, so that the least of m times replaces a heap. Ties go to the lower
    # device; which one is first makes no difference unless the result is unsure.
    d, now = 0, s.devices[base.device].next_s
    for other in range(1, s.m):
        its = s.devices[base.device + index(other)].next_s
        sooner = its < now
        d = other if sooner else d
        now = its if sooner else now
    return d, now


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
        # A spare row, the stretch, and another spare row: see the drawing in `fast_state`.
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


MOST_LISTED = 32
"""Pending operators of a device that are looked through one by one; more of them form a heap."""


@njit_inline
def add_pending(
    s: FastState, device: int, i: int, position: int, ready_s: float, pending: bool
) -> None:
    """List an operator all of whose inputs have been sent; keep the row only if `pending`."""
    its = s.devices[device]
    # The row behind the list is always written; only `pending_end` decides whether it counts. A
    # device's stretch has a spare row for the case that the list is full.
    end = its.pending_end
    row = s.pending[end]
    its.pending_end = end + pending
    row.ready_s = ready_s
    row.position = position
    row.op = i


@njit_inline
def start_in_order(s: FastState, mode: Mode, base: Offsets, device: int, now: float) -> None:
    """Start the next operator of a free device in its sequence, or note when it may start."""
    its = s.devices[base.device + device]
    # Asleep, unless one of the two cases below holds or `_deliver` brings the last input later.
    its.next_s = np.inf
    # In order the heap is a plain sequence and `heap_size` how many of it have started.
    at = index(its.begin + its.heap_size)
    if at < its.end:
        i = s.pending_heap[at]
        op = s.ops[base.op + i]
        if op.waiting == 0:
            if op.ready_s <= now:
                its.heap_size += 1
                its.running = i
                its.next_s = now + op.took_s
                if mode.memory:
                    s.start_s[base.op + i] = now
            else:
                its.next_s = op.ready_s


@njit_inline
def start_ready(s: FastState, mode: Mode, base: Offsets, device: int, now: float) -> None:
    """Start the first ready operator of a free device, or note when there will be one."""
    row = base.device + device
    its = s.devices[row]
    soonest_s = _move_ready(s, base, row, now)
    # Bits are places in the order, so that the lowest one is what rule D2 starts.
    first = take_first(s.bits, s.tops, row)
    found = first >= 0
    i = s.ranked[base.op + index(max(first, 0))]
    # Without a ready operator, row 0 of the order is read and thrown away: no branch.
    its.running = i if found else index(s.n)
    its.next_s = now + s.ops[base.op + i].took_s if found else soonest_s
    if mode.memory and found:
        s.start_s[base.op + i] = now


@njit_inline
def _move_ready(s: FastState, base: Offsets, device: int, now: float) -> float:
    """Move pending operators that are ready by now to the ready set; soonest time of the rest.

    The rows that stay are moved to the front of the list without a branch.
    """
    its = s.devices[device]
    begin, soonest_s = its.begin, np.inf
    # Few devices ever have a heap, so that this branch is guessed right.
    if its.heap_size > 0:
        soonest_s = _pop_ready(s, base, device, now)
    kept = begin
    for x in range(begin, its.pending_end):
        # `row` may be `hole`: read all of it before writing.
        row, hole = s.pending[x], s.pending[kept]
        its_s, at, i = row.ready_s, row.position, row.op
        late = its_s > now
        include(s.bits, s.tops, device, at, not late)
        hole.ready_s = its_s
        hole.position = at
        hole.op = i
        kept = index(kept + late)
        soonest_s = its_s if late & (its_s < soonest_s) else soonest_s
    its.pending_end = kept
    # What has waited through this call moves to the heap, which is not walked at every event.
    if kept - begin > MOST_LISTED:
        _push_pending(s, base, device)
    return soonest_s


@njit_inline
def _pop_ready(s: FastState, base: Offsets, device: int, now: float) -> float:
    """As `_move_ready`, for the heap."""
    its = s.devices[device]
    while its.heap_size > 0 and s.ready_s[base.op + s.pending_heap[its.begin]] <= now:
        i = pop(s.pending_heap, its.begin, its.heap_size, s.ready_s, base.op)
        its.heap_size -= 1
        include(s.bits, s.tops, device, s.ops[base.op + i].position, True)
    return s.ready_s[base.op + s.pending_heap[its.begin]] if its.heap_size > 0 else np.inf


@njit_inline
def _push_pending(s: FastState, base: Offsets, device: int) -> None:
    """Move the list into the heap."""
    its = s.devices[device]
    # Their `ready_s` is final (all inputs have been sent), so that it may be a heap's key.
    for x in range(its.begin, its.pending_end):
        push(s.pending_heap, its.begin, its.heap_size, s.ready_s, base.op, s.pending[x].op)
        its.heap_size += 1
    its.pending_end = its.begin


@njit_inline
def _send_separately(s: FastState, mode: Mode, base: Offsets, i: int, d: int, now: float) -> bool:
    """Send the outputs of operator `i`, which has ended on device `d`, and set their arrivals.

    For where the order does not matter: no two requests for one channel, or none waits. False
    where the result is unsure (see the top of this file): a transfer takes no time, or another
    operator has requested its channel at this instant.
    """
    here, certain = index(d * s.m), True
    for e in range(s.static[i].first, s.static[i].last):
        edge = s.edges[e]
        tensor, target = edge.tensor, s.ops[base.op + edge.consumer].device
        # A pair within one device has a channel of its own and takes no time: no branch for it.
        pair, to = s.pairs[here + target], s.devices[base.device + target]
        channel = s.channel[base.channel + pair.channel]
        free_s, requested_s = channel.free_s, channel.requested_s
        new, sent_s = to.last_tensor != tensor, to.arrival_s  # a tensor goes once to a device
        # Rule C4 is first come, first served, and events come by time: whoever asks now is served
        # behind all that asked before, which ends at `free_s`.
        start_s = max(now, free_s)
        at_s = start_s + (pair.latency_s + edge.bytes * pair.seconds_per_byte)
        # Within the device nothing travels: only real channels can make the result unsure.
        alone = (at_s > start_s) & (not (new & (requested_s == now)))
        certain &= alone | (target == d)
        at_s = at_s if new else sent_s
        _deliver(s, mode, base, e, at_s)
        # A tensor's second reader on the device writes back what the first one left.
        channel.free_s = at_s if new & mode.contended else free_s
        channel.requested_s = now if mode.contended else -1.0
        to.last_tensor = tensor
        to.arrival_s = at_s
    return certain


@njit_inline
def _deliver(s: FastState, mode: Mode, base: Offsets, e: int, at_s: float) -> None:
    """Set the arrival of an edge's tensor; its reader may be pending from now on."""
    j = s.edges[e].consumer
    op = s.ops[base.op + j]
    row = base.device + op.device
    to = s.devices[row]
    ready_s, left, position = max(op.ready_s, at_s), op.waiting - 1, op.position
    # A device that is busy looks at its list when it ends; only an idle one must be woken.
    pending, idle, next_s = left == 0, to.running == s.n, to.next_s
    if mode.in_order:
        # In order, only the operator that the device waits for wakes it.
        if pending & idle and s.pending_heap[index(to.begin + to.heap_size)] == j:
            to.next_s = ready_s
    else:
        add_pending(s, row, j, position, ready_s, pending)
        to.next_s = ready_s if pending & idle & (ready_s < next_s) else next_s
    if mode.memory:
        s.arrival_s[base.edge + e] = at_s
    op.ready_s = ready_s
    op.waiting = left


@njit_inline
def _send_contended(s: FastState, mode: Mode, base: Offsets, i: int, d: int, now: float) -> bool:
    """Send where requests can be for one channel, best reader first (rule C4)."""
    first, last = s.static[i].first, s.static[i].last
    # Look at all requests before booking any: two of this operator may share a channel, which is
    # no tie (they are sorted), while a request of another operator at this instant is one.
    here, count = index(d * s.m), _requests(s, base, first, last)
    certain = True
    for r in range(count):
        target = s.ops[base.op + s.edges[s.requests[r].edge].consumer].device
        pair = s.pairs[here + target]
        certain &= (s.channel[base.channel + pair.channel].requested_s != now) | (target == d)
    for x in range(count):
        request = s.requests[s.requests[x].served]
        edge = s.edges[request.edge]
        target = s.ops[base.op + edge.consumer].device
        pair = s.pairs[here + target]
        channel = s.channel[base.channel + pair.channel]
        start_s = max(now, channel.free_s)
        at_s = start_s + (pair.latency_s + edge.bytes * pair.seconds_per_byte)
        certain &= (at_s > start_s) | (target == d)
        channel.free_s = at_s
        channel.requested_s = now
        request.at_s = at_s
    for e in range(first, last):
        _deliver(s, mode, base, e, s.requests[s.request_of[e - first]].at_s)
    return certain


@njit_inline
def _requests(s: FastState, base: Offsets, first: int, last: int) -> int:
    """List one request per tensor and target, sorted by best reader; returns how many."""
    count = 0
    for e in range(first, last):
        edge = s.edges[e]
        reader = s.ops[base.op + edge.consumer]
        to = s.devices[base.device + reader.device]
        # Edges come by tensor: a device's last tensor tells whether there is a request already.
        if to.last_tensor != edge.tensor:
            to.last_tensor = edge.tensor
            to.request = count
            new = s.requests[count]
            new.edge, new.position = e, reader.position
            count += 1
        s.request_of[e - first] = to.request
        its = s.requests[to.request]
        its.position = min(its.position, reader.position)
    # Insertion sort of row numbers, stable: of equal best readers the lower tensor comes first.
    for r in range(count):
        at, mine = r, s.requests[r].position
        while at > 0 and s.requests[s.requests[at - 1].served].position > mine:
            s.requests[at].served = s.requests[at - 1].served
            at -= 1
        s.requests[at].served = r
    return count


@njit_inline
def find_copies(s: FastState, base: Offsets, ended: bool) -> None:
    """Set which copy each edge reads; once all has ended, also until when each is held.

    A copy is named by the edge that brought it, or by E + k where tensor k was made.
    """
    for d in range(s.m):
        s.devices[base.device + index(d)].last_tensor = 0
    for k in range(len(s.tensors)):
        tensor, made = s.tensors[index(k)], index(len(s.edges) + k)
        home = s.ops[base.op + tensor.producer].device
        s.devices[base.device + home].last_tensor = k + 1
        s.devices[base.device + home].request = made
        until_s = end_s(s, base, tensor.producer) if ended else 0.0
        for e in range(tensor.first, tensor.last):
            j = s.edges[e].consumer
            to = s.devices[base.device + s.ops[base.op + j].device]
            # The first edge to a device brings the copy that later edges to it read. Its transfer
            # reads the copy at home until it arrives (rule M2).
            if to.last_tensor != index(k + 1):
                to.last_tensor, to.request = k + 1, e
                if ended:
                    s.until_s[e] = 0.0
                    until_s = max(until_s, s.arrival_s[base.edge + e])
            copy = to.request
            s.copy[e] = copy
            if ended and copy == made:
                until_s = max(until_s, end_s(s, base, j))
            elif ended:
                s.until_s[copy] = max(s.until_s[copy], end_s(s, base, j))
        s.until_s[made] = until_s


@njit_inline
def end_s(s: FastState, base: Offsets, i: int) -> float:
    """When operator `i` ended."""
    return s.start_s[base.op + i] + s.ops[base.op + i].took_s  # type: ignore[no-any-return]


MOST_IN_CELL = 24
"""Operators of one cell that are sorted by insertion; more are spread once more."""

SMALLEST_WIDTH = 1e-280
"""Seconds; a range of ranks below it is one cell, since dividing by it might overflow."""


@njit_inline
def rank_upward(s: FastState, base: Offsets, placement: IntArray) -> float:
    """Place all operators and set `rank` to minus their upward rank (rule O2).

    Returns the least, that of the first operator; -inf where a device cannot run one.
    """
    least = 0.0
    for at in range(s.n - 1, -1, -1):
        i = s.topological[index(at)]
        took_s, static = place_operator(s, base, i, index(placement[i])), s.static[i]
        here = index(placement[i] * s.m)
        tail = 0.0
        for e in range(static.first, static.last):
            edge = s.edges[e]
            j = edge.consumer
            pair = s.pairs[here + s.ops[base.op + j].device]
            path = pair.latency_s + edge.bytes * pair.seconds_per_byte - s.rank[j]
            tail = max(tail, path)
        rank = -(took_s + tail)
        s.rank[i] = rank
        least = min(least, rank)
    return least


@njit_inline
def place_operator(s: FastState, base: Offsets, i: int, d: int) -> float:
    """Put an operator on a device, with nothing sent to it yet; returns its seconds there."""
    took_s = s.compute_s[index(i * s.m + d)]
    op = s.ops[base.op + i]
    op.ready_s = 0.0
    op.took_s = took_s
    op.device = d
    op.waiting = s.static[i].inputs
    s.devices[base.device + d].end += 1
    return took_s  # type: ignore[no-any-return]


@njit_inline
def sort_by_rank(s: FastState, base: Offsets, least: float) -> None:
    """Sort `ranked` by (rank, operator): into n cells of equal width, then within each."""
    n, ops = s.n, base.op
    if least == -np.inf:  # no cells of a width
        for i in range(n):
            s.ranked[ops + i] = i
        _sort_by_heap(s, ops, 0, n)
        return
    _into_cells(s, base, least, _scale(n, -least))
    begin = 0
    for cell in range(n):
        end = s.cell_end[cell]
        if end - begin > MOST_IN_CELL:
            _sort_many(s, ops, begin, end)
        begin = end
    # Cells are in order and short: one insertion sort over all finishes them, and looks no
    # farther back than a cell. Stable, so that equal ranks stay by operator (rule O3).
    for at in range(1, n):
        _sink(s, ops, at)


@njit_inline
def _into_cells(s: FastState, base: Offsets, least: float, per_second: float) -> None:
    """Sort `ranked` by cell, within a cell by operator; `cell_end` is where each cell ends."""
    n = s.n
    for cell in range(n + 1):
        s.cell_end[cell] = 0
    for i in range(n):
        cell = min(n - 1, int((s.rank[i] - least) * per_second))
        s.cell[i] = cell
        # Counting sort: counts, then begins, which become ends as each cell is filled.
        s.cell_end[cell + 1] += 1
    for cell in range(n):
        s.cell_end[cell + 1] += s.cell_end[cell]
    for i in range(n):
        at = s.cell_end[s.cell[i]]
        s.ranked[base.op + at] = i
        s.ranked_key[at] = s.rank[i]
        s.cell_end[s.cell[i]] = at + 1


@njit_internal
def _sort_many(s: FastState, ops: int, begin: int, end: int) -> None:
    """Sort a crowded cell into cells of its own; what is crowded again goes through a heap."""
    count, least, most = end - begin, s.ranked_key[begin], s.ranked_key[begin]
    for at in range(begin, end):
        least = min(least, s.ranked_key[at])
        most = max(most, s.ranked_key[at])
    # All equal: they stand by operator already, which is their order (rule O3).
    if most == least:
        return
    _into_cells_again(s, ops, begin, end, least, _scale(count, most - least))
    first = begin
    for cell in range(count):
        last = begin + s.subcell_end[cell]
        if last - first > MOST_IN_CELL:
            _sort_by_heap(s, ops, first, last)
        first = last


@njit_inline
def _scale(cells: int, width: float) -> float:
    """Cells per second of rank, 0 for one cell."""
    return cells / width if width > SMALLEST_WIDTH else 0.0


@njit_inline
def _into_cells_again(
    s: FastState, ops: int, begin: int, end: int, least: float, per_second: float
) -> None:
    """As `_into_cells`, for a part of `ranked`; `subcell_end` counts from its begin."""
    count = end - begin
    for cell in range(count + 1):
        s.subcell_end[cell] = 0
    for at in range(begin, end):
        cell = min(count - 1, int((s.ranked_key[at] - least) * per_second))
        s.cell[at] = cell
        s.subcell_end[cell + 1] += 1
        # Copied first, since rows are written where others have not been read.
        s.pending_heap[ops + at] = s.ranked[ops + at]
    for cell in range(count):
        s.subcell_end[cell + 1] += s.subcell_end[cell]
    for at in range(begin, end):
        to = s.subcell_end[s.cell[at]]
        i = s.pending_heap[ops + at]
        s.ranked[ops + begin + to] = i
        s.ranked_key[begin + to] = s.rank[i]
        s.subcell_end[s.cell[at]] = to + 1


@njit_inline
def _sort_by_heap(s: FastState, ops: int, begin: int, end: int) -> None:
    """Sort through `pending_heap`, which is not used before a simulation."""
    for at in range(begin, end):
        push(s.pending_heap, ops, at - begin, s.rank, 0, s.ranked[ops + at])
    for at in range(begin, end):
        i = pop(s.pending_heap, ops, end - at, s.rank, 0)
        s.ranked[ops + at] = i
        s.ranked_key[at] = s.rank[i]


@njit_inline
def _sink(s: FastState, ops: int, at: int) -> None:
    """Sink the operator at `at` to its place among those before it; equals stay as they are."""
    i, mine = s.ranked[ops + at], s.ranked_key[at]
    while at > 0 and s.ranked_key[at - 1] > mine:
        s.ranked[ops + at] = s.ranked[ops + at - 1]
        s.ranked_key[at] = s.ranked_key[at - 1]
        at -= 1
    s.ranked[ops + at] = i
    s.ranked_key[at] = mine


@njit_inline
def follow_order(s: FastState, base: Offsets, placement: IntArray, order: IntArray) -> float:
    """Place all operators, `ranked` in the order given; returns the most seconds of one."""
    longest = 0.0
    for at in range(len(order)):
        i = index(order[index(at)])
        s.ranked[base.op + index(at)] = i
        longest = max(longest, place_operator(s, base, i, index(placement[i])))
    return longest
