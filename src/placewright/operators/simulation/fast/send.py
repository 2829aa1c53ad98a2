"""What ends on the fast path is sent, compiled: channels give their times at once."""

from __future__ import annotations

from placewright.numerics.njit import index, inlined
from placewright.operators.simulation.fast.choice import expect
from placewright.operators.simulation.fast.state import FastState, Seat
from placewright.operators.simulation.modes import Mode


@inlined
def send(s: FastState, mode: Mode, handle: Seat, i: int, d: int, now: float) -> bool:
    """`i` has ended on `d`: its consumers learn when its tensors come.

    False where unsure: a transfer takes no time, or another operator has asked for its channel at
    this very time.
    """
    if s.facts[i].alone == 1 or not mode.contended:
        return _send_alone(s, mode, handle, i, d, now)
    return _send_in_turn(s, mode, handle, i, d, now)


@inlined
def _send_alone(s: FastState, mode: Mode, handle: Seat, i: int, d: int, now: float) -> bool:
    """No two requests are for the same channel, or none waits: their turns do not matter."""
    here, sure = index(d * s.m), True
    for e in range(s.facts[i].first, s.facts[i].last):
        edge = s.edges[e]
        tensor, target = edge.tensor, s.ops[handle.op + edge.consumer].place
        pair, to = s.pairs[here + target], s.devices[handle.device + target]
        lane = s.lane[handle.lane + pair.lane]
        free_s, asked_s, new, sent_s = lane.free_s, lane.asked_s, to.seen != tensor, to.arrival_s
        start_s = max(now, free_s)
        at_s = start_s + (pair.latency_s + edge.bytes * pair.seconds_per_byte)
        sure &= ((at_s > start_s) | (target == d)) & (not (new & (asked_s == now)))
        at_s = at_s if new else sent_s
        _will_be_there(s, mode, handle, e, at_s)
        lane.free_s = at_s if new & mode.contended else free_s
        lane.asked_s = now if mode.contended else -1.0
        to.seen = tensor
        to.arrival_s = at_s
    return sure


@inlined
def _will_be_there(s: FastState, mode: Mode, handle: Seat, e: int, at_s: float) -> None:
    """What an edge brings comes at `at_s`; after its last input, an operator is known."""
    j = s.edges[e].consumer
    op = s.ops[handle.op + j]
    row = handle.device + op.place
    to = s.devices[row]
    ready_s, left, position = max(op.ready_s, at_s), op.waiting - 1, op.position
    known, idle, next_s = left == 0, to.running == s.n, to.next_s
    if mode.in_order:
        if known & idle and s.early[index(to.begin + to.early)] == j:
            to.next_s = ready_s
    else:
        expect(s, row, j, position, ready_s, known)
        to.next_s = ready_s if known & idle & (ready_s < next_s) else next_s
    if mode.memory:
        s.came_s[handle.edge + e] = at_s
    op.ready_s = ready_s
    op.waiting = left


@inlined
def _send_in_turn(s: FastState, mode: Mode, handle: Seat, i: int, d: int, now: float) -> bool:
    """Requests for one channel, best consumer first."""
    first, last = s.facts[i].first, s.facts[i].last
    here, count = index(d * s.m), _requests(s, handle, first, last)
    sure = True
    for r in range(count):
        pair = s.pairs[here + s.ops[handle.op + s.edges[s.requests[r].edge].consumer].place]
        sure &= s.lane[handle.lane + pair.lane].asked_s != now
    for x in range(count):
        request = s.requests[s.requests[x].turn]
        edge = s.edges[request.edge]
        target = s.ops[handle.op + edge.consumer].place
        pair = s.pairs[here + target]
        lane = s.lane[handle.lane + pair.lane]
        start_s = max(now, lane.free_s)
        at_s = start_s + (pair.latency_s + edge.bytes * pair.seconds_per_byte)
        sure &= (at_s > start_s) | (target == d)
        lane.free_s = at_s
        lane.asked_s = now
        request.at_s = at_s
    for e in range(first, last):
        _will_be_there(s, mode, handle, e, s.requests[s.request_of[e - first]].at_s)
    return sure


@inlined
def _requests(s: FastState, handle: Seat, first: int, last: int) -> int:
    """One per tensor and target, their turns by best consumer; returns how many."""
    count = 0
    for e in range(first, last):
        edge = s.edges[e]
        reader = s.ops[handle.op + edge.consumer]
        to = s.devices[handle.device + reader.place]
        if to.seen != edge.tensor:
            to.seen = edge.tensor
            to.request = count
            new = s.requests[count]
            new.edge, new.position = e, reader.position
            count += 1
        s.request_of[e - first] = to.request
        its = s.requests[to.request]
        its.position = min(its.position, reader.position)
    for r in range(count):
        at, mine = r, s.requests[r].position
        while at > 0 and s.requests[s.requests[at - 1].turn].position > mine:
            s.requests[at].turn = s.requests[at - 1].turn
            at -= 1
        s.requests[at].turn = r
    return count
