"""Simulator by rounds, compiled: the rules word by word.

The rules are those of docs/reference/simulation.md;
``tests/operators/simulation/reference.py`` follows them in plain Python, to the last bit. It plays
on the state of the fast simulator, whose first simulation it overwrites: order, sequences and sets
of ready operators are the same, and so is how a device chooses. What differs is that nothing is
known before it happens: ends are taken from one instant to the next, all of a round at once, and a
request waits in the queue of its channel. That is right for ties, for what takes no time and for
pairs of devices without a link as well, where the fast simulator is unsure.

*Transfers* are numbered by their best reader, then tensor, which is the order in which requests of
one instant are served (rules C4 and S3): a queue needs nothing but the instant and the number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import index, njit_inline, njit_internal, njit_no_refcount
from placewright.operators.costs import Costs
from placewright.operators.queues import clear, include, pop, push, take_first
from placewright.operators.simulation.fast import (
    find_copies,
    lay_out,
    offsets_of,
    start_in_order,
    start_ready,
)
from placewright.operators.simulation.fast_state import WORD, FastState, Offsets
from placewright.operators.simulation.inputs import Mode

TRANSFERS, ARRIVING, ASKED = range(3)
"""Slots of `Rounds.counts`: transfers of the placement; of these, those on their way; where links
are free, those requested in this round."""

UNNUMBERED = 2**32 - 1


@by_reference
class Rounds(NamedTuple):
    """What is needed beside the state of the fast simulator.

    Attributes
    ----------
    in_start, in_edge
        CSR by operator: edges over which it reads, by tensor index.
    tensor, row
        The index of each row of ``FastState.tensors``, and the row of each tensor.
    second_pass
        Shape (n,), 1 for operators of the second of two passes that do not mix (rule L4).
    number
        Of the transfer over an edge, `UNNUMBERED` for edges that bring nothing.
    edge, requested_s, end_s
        By number of transfer: the edge that brings its tensor, when it was requested and when it
        arrives.
    sent_s
        By edge, when the transfer over it started.
    arriving
        Heap of transfers on their way.
    queue, begin, waiting, busy
        Heaps of requests, where each channel's begins and how many it has; whether a channel is
        busy. Where links are free, `queue` lists the requests of a round.
    bits, tops
        Channels that have to choose in this round (`placewright.operators.queues`).
    """

    passes: int
    in_start: IntArray
    in_edge: IntArray
    tensor: IntArray
    row: IntArray
    second_pass: IntArray
    number: IntArray
    edge: IntArray
    requested_s: FloatArray
    end_s: FloatArray
    sent_s: FloatArray
    arriving: IntArray
    queue: IntArray
    begin: IntArray
    waiting: IntArray
    busy: IntArray
    bits: Any
    tops: Any
    counts: IntArray


def make_rounds(costs: Costs, state: FastState, second_pass: BoolArray | None = None) -> Rounds:
    """Room for the simulation of any placement.

    `second_pass`: Shape (n,), the operators of the second pass, where passes do not mix.
    """
    edges, channels, n = len(state.edges), state.channels, state.n
    tensor = costs.out_tensors[state.edges["tensor"] - 1]
    words = -(-channels // WORD)
    return Rounds(
        passes=1 if second_pass is None else 2,
        in_start=costs.in_offsets,
        in_edge=np.lexsort((tensor, state.edges["consumer"])).astype(np.uint32),
        tensor=costs.out_tensors,
        row=np.argsort(costs.out_tensors),
        second_pass=np.zeros(n, np.int64) if second_pass is None else second_pass + 0,
        number=np.zeros(edges, dtype=np.uint32),
        edge=np.zeros(edges, dtype=np.uint32),
        requested_s=np.zeros(edges),
        end_s=np.zeros(edges),
        sent_s=np.zeros(edges),
        arriving=np.zeros(edges, dtype=np.uint32),
        queue=np.zeros(edges, dtype=np.uint32),
        begin=np.zeros(channels + 1, dtype=np.int64),
        waiting=np.zeros(channels, dtype=np.int64),
        busy=np.zeros(channels, dtype=np.int64),
        bits=np.zeros((1, words), dtype=np.uint64),
        tops=np.zeros((1, -(-words // WORD)), dtype=np.uint64),
        counts=np.zeros(3, dtype=np.int64),
    )


@njit_no_refcount
def simulate(s: FastState, r: Rounds, mode: Mode, place: IntArray, order: IntArray) -> bool:
    """Simulate a placement; False where it breaks one of the rules P1 to P3.

    `order` is a permutation, or empty for the upward rank under this placement. Afterwards the
    makespan, and when each operator starts and each tensor arrives, are where the fast simulator
    has them in its first simulation.
    """
    base = offsets_of(s, 0)
    s.unfinished[0], s.makespan_s[0] = s.n, 0.0
    if not _possible(s, place):
        return False
    lay_out(s, mode, base, place, order)
    find_copies(s, base, False)
    _number_transfers(s, r, base)
    # Starts are kept, also where no bytes are counted.
    kept = Mode(mode.contended, mode.serial, mode.in_order, True)
    if mode.serial:
        _simulate_serial(s, r, kept, base)
    else:
        _reset_channels(s, r, base)
        _simulate_parallel(s, r, kept, base)
    return s.unfinished[0] == 0  # type: ignore[no-any-return]


@njit_inline
def _possible(s: FastState, place: IntArray) -> bool:
    """Whether devices can run their operators and reach each other (rules P1 and P2)."""
    for i in range(s.n):
        if not np.isfinite(s.compute_s[index(i * s.m + place[i])]):
            return False
    if s.all_linked:
        return True
    for k in range(len(s.tensors)):
        here = place[s.tensors[index(k)].producer] * s.m
        for e in range(s.tensors[index(k)].first, s.tensors[index(k)].last):
            if s.pairs[index(here + place[s.edges[e].consumer])].latency_s == np.inf:
                return False
    return True


@njit_internal
def _number_transfers(s: FastState, r: Rounds, base: Offsets) -> None:
    """Number the transfers: each tensor once per other device that reads it (rule C1)."""
    r.number[:] = UNNUMBERED
    count = 0
    # Readers by the order, so that a transfer is met first at its best reader.
    for at in range(s.n):
        i = s.ranked[base.op + index(at)]
        for x in range(r.in_start[i], r.in_start[index(i + 1)]):
            copy = s.copy[r.in_edge[index(x)]]
            if copy < len(s.edges) and r.number[copy] == UNNUMBERED:
                r.number[copy], r.edge[count] = count, copy
                count += 1
    r.counts[TRANSFERS] = count


@njit_inline
def _reset_channels(s: FastState, r: Rounds, base: Offsets) -> None:
    """Empty the queues of channels, sized for this placement's transfers."""
    r.begin[:] = 0
    r.waiting[:] = 0
    r.busy[:] = 0
    r.counts[ARRIVING] = r.counts[ASKED] = 0
    clear(r.bits, r.tops, 0)
    for x in range(r.counts[TRANSFERS]):
        r.begin[_pair(s, r, base, x).channel + 1] += 1
    for channel in range(s.channels):
        r.begin[channel + 1] += r.begin[channel]


@njit_inline
def _pair(s: FastState, r: Rounds, base: Offsets, x: int) -> Any:
    """The pair of devices of transfer `x`."""
    edge = s.edges[r.edge[x]]
    source = s.ops[base.op + s.tensors[index(edge.tensor - 1)].producer].device
    return s.pairs[index(source * s.m + s.ops[base.op + edge.consumer].device)]


@njit_internal
def _simulate_parallel(s: FastState, r: Rounds, mode: Mode, base: Offsets) -> None:
    """Run rounds of rule E3: what ends at one instant, then channels, then devices choose."""
    # Rule E3: the first round starts operators only, nothing has been requested yet.
    now, busy = 0.0, True
    while busy:
        for d in range(s.m):
            its = s.devices[base.device + index(d)]
            if its.running == s.n and its.next_s <= now:  # others have nothing new
                if mode.in_order:
                    start_in_order(s, mode, base, index(d), now)
                else:
                    start_ready(s, mode, base, index(d), now)
        # What starts in this round and takes no time ends in another round of the same instant.
        busy = r.counts[ARRIVING] > 0
        now = r.end_s[r.arriving[0]] if busy else np.inf
        for d in range(s.m):
            its = s.devices[base.device + index(d)]
            if its.running != s.n:
                busy, now = True, min(now, its.next_s)
        # Ends at one instant commute: they only request and deliver.
        for d in range(s.m):
            its = s.devices[base.device + index(d)]
            i = its.running
            if i != s.n and its.next_s == now:
                its.running = s.n
                _finish_operator(s, r, mode, base, i, now)
        while r.counts[ARRIVING] > 0 and r.end_s[r.arriving[0]] == now:
            x = pop(r.arriving, 0, r.counts[ARRIVING], r.end_s, 0)
            r.counts[ARRIVING] -= 1
            _finish_transfer(s, r, mode, base, x, now)
        _channels_choose(s, r, mode, base, now)


@njit_internal
def _finish_operator(
    s: FastState, r: Rounds, mode: Mode, base: Offsets, i: int, now: float
) -> None:
    """Deliver what operator `i` makes to its readers on the device; request its transfers."""
    s.unfinished[0] -= 1
    s.makespan_s[0] = now
    for e in range(s.static[i].first, s.static[i].last):
        if s.copy[e] >= len(s.edges):
            _deliver(s, mode, base, e, now)
        elif s.copy[e] == e:
            _request(s, r, mode, base, r.number[e], now)


@njit_inline
def _finish_transfer(
    s: FastState, r: Rounds, mode: Mode, base: Offsets, x: int, now: float
) -> None:
    """Deliver a tensor to its readers on the device to which it was sent; its channel is free."""
    tensor = s.tensors[index(s.edges[r.edge[x]].tensor - 1)]
    for e in range(tensor.first, tensor.last):
        if s.copy[e] == r.edge[x]:
            _deliver(s, mode, base, e, now)
    if mode.contended:
        channel = _pair(s, r, base, x).channel
        r.busy[channel] = 0
        include(r.bits, r.tops, 0, channel, True)


@njit_inline
def _deliver(s: FastState, mode: Mode, base: Offsets, e: int, now: float) -> None:
    """The reader at an edge waits for one tensor less; where it is ready, its device looks."""
    op = s.ops[base.op + s.edges[e].consumer]
    op.waiting -= 1
    if op.waiting == 0:
        # The whole system has one set where one thing happens at a time.
        device = base.device if mode.serial else base.device + op.device
        its = s.devices[device]
        its.next_s = now if its.running == s.n else its.next_s
        if not mode.in_order:
            include(s.bits, s.tops, device, op.position, True)


@njit_inline
def _request(s: FastState, r: Rounds, mode: Mode, base: Offsets, x: int, now: float) -> None:
    """Queue transfer `x` for its channel; where links are free, for the end of this round."""
    r.requested_s[x] = now
    if not mode.contended:
        r.queue[r.counts[ASKED]] = x
        r.counts[ASKED] += 1
        return
    channel = _pair(s, r, base, x).channel
    push(r.queue, r.begin[channel], r.waiting[channel], r.requested_s, 0, x)
    r.waiting[channel] += 1
    include(r.bits, r.tops, 0, channel, True)


@njit_inline
def _channels_choose(s: FastState, r: Rounds, mode: Mode, base: Offsets, now: float) -> None:
    """Start the first request of every free channel; where links are free, every request."""
    for at in range(r.counts[ASKED]):
        _start_transfer(s, r, base, r.queue[at], now)
    r.counts[ASKED] = 0
    channel = take_first(r.bits, r.tops, 0)
    while channel >= 0:
        if r.busy[channel] == 0 and r.waiting[channel] > 0:
            x = pop(r.queue, r.begin[channel], r.waiting[channel], r.requested_s, 0)
            r.waiting[channel] -= 1
            r.busy[channel] = 1
            _start_transfer(s, r, base, x, now)
        channel = take_first(r.bits, r.tops, 0)


@njit_internal
def _start_transfer(s: FastState, r: Rounds, base: Offsets, x: int, now: float) -> None:
    _send(s, r, base, x, now)
    push(r.arriving, 0, r.counts[ARRIVING], r.end_s, 0, x)
    r.counts[ARRIVING] += 1


@njit_internal
def _send(s: FastState, r: Rounds, base: Offsets, x: int, now: float) -> None:
    """Set when transfer `x` starts and ends (rule C2)."""
    edge, pair = s.edges[r.edge[x]], _pair(s, r, base, x)
    r.sent_s[r.edge[x]] = now
    r.end_s[x] = now + (pair.latency_s + edge.bytes * pair.seconds_per_byte)
    s.arrival_s[base.edge + r.edge[x]] = r.end_s[x]


@njit_internal
def _simulate_serial(s: FastState, r: Rounds, mode: Mode, base: Offsets) -> None:
    """Run one operator, then its transfers, and again (rules S1 to S3)."""
    now = 0.0
    clear(s.bits, s.tops, base.device)
    for at in range(len(s.sources)):
        include(s.bits, s.tops, base.device, s.ops[base.op + s.sources[index(at)]].position, True)
    while s.unfinished[0] > 0:
        at = s.n - s.unfinished[0] if mode.in_order else take_first(s.bits, s.tops, base.device)
        if at < 0:
            return
        i = s.ranked[base.op + index(at)]
        op = s.ops[base.op + i]
        if op.waiting > 0:
            return
        s.start_s[base.op + i] = now
        now += op.took_s
        s.unfinished[0] -= 1
        s.makespan_s[0] = now
        # Readers are ready once their producers have ended (rule S2); all that was sent has
        # arrived by then, since the next operator waits for the last transfer (rule S1).
        size = 0
        for e in range(s.static[i].first, s.static[i].last):
            _deliver(s, mode, base, e, now)
            if s.copy[e] == e:
                # One instant for all, so that the heap goes by best reader, then tensor (S3).
                r.requested_s[r.number[e]] = now
                push(r.queue, 0, size, r.requested_s, 0, r.number[e])
                size += 1
        while size > 0:
            x = pop(r.queue, 0, size, r.requested_s, 0)
            size -= 1
            _send(s, r, base, x, now)
            now = r.end_s[x]


@njit_no_refcount
def period(s: FastState, r: Rounds, mode: Mode, place: IntArray, load_s: FloatArray) -> float:
    """Seconds from one sample to the next (rules L1, L3 and L4), without copies of stages.

    Needs no simulation before it. `load_s` is scratch, shape (m + channels,).
    """
    if r.passes == 1:
        return _period(s, r, mode, place, load_s, -1)
    return _period(s, r, mode, place, load_s, 0) + _period(s, r, mode, place, load_s, 1)


@njit_internal
def _period(
    s: FastState, r: Rounds, mode: Mode, place: IntArray, load_s: FloatArray, only: int
) -> float:
    """Of the first pass (0), of the second (1), or of both together (-1)."""
    load_s[:] = 0.0
    for d in range(s.m):
        s.devices[index(d)].last_tensor = 0
    for i in range(s.n):
        if only < 0 or r.second_pass[i] == only:
            load_s[place[i]] += s.compute_s[index(i * s.m + place[i])]
    for k in r.row:  # by tensor index
        tensor = s.tensors[index(k)]
        if only >= 0 and r.second_pass[tensor.producer] != only:
            continue
        source = place[tensor.producer]
        for e in range(tensor.first, tensor.last):
            edge = s.edges[e]
            target = place[edge.consumer]
            to = s.devices[index(target)]
            if target != source and to.last_tensor != edge.tensor:
                to.last_tensor = edge.tensor  # once per target
                pair = s.pairs[index(source * s.m + target)]
                load_s[s.m + pair.channel] += pair.latency_s + edge.bytes * pair.seconds_per_byte
    # Devices and channels work side by side; with free links channels do any number of things.
    total, largest = 0.0, 0.0
    for at in range(len(load_s) if mode.serial or mode.contended else s.m):
        total += load_s[at]
        largest = max(largest, load_s[at])
    return total if mode.serial else largest
