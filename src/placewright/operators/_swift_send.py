"""What ends on the fast path is sent, compiled: channels give their times at once."""

from __future__ import annotations

from placewright.compiled import index, inlined
from placewright.operators._modes import Mode
from placewright.operators._swift import Seat, Swift


@inlined
def send(s: Swift, mode: Mode, seat: Seat, i: int, d: int, now: float) -> bool:
    """`i` has ended on `d`: its consumers learn when its tensors come.

    False where unsure: a transfer takes no time, or another operator has asked for its channel at
    this very time.
    """
    if not mode.contended:
        return _send_freely(s, mode, seat, i, d, now)
    if s.alone[i] == 1:
        return _send_alone(s, mode, seat, i, d, now)
    return _send_in_turn(s, mode, seat, i, d, now)


@inlined
def _send_freely(s: Swift, mode: Mode, seat: Seat, i: int, d: int, now: float) -> bool:
    """No transfer waits."""
    here, sure = index(d * s.devices), True
    for e in range(s.first_edge[i], s.first_edge[i + 1]):
        target = s.place[seat.op + s.consumer[e]]
        pair = here + target
        at_s = now + (s.latency_s[pair] + s.edge_bytes[e] * s.seconds_per_byte[pair])
        sure &= (at_s > now) | (target == d)
        _will_be_there(s, mode, seat, s.consumer[e], target, at_s)
    return sure


@inlined
def _send_alone(s: Swift, mode: Mode, seat: Seat, i: int, d: int, now: float) -> bool:
    """None of its requests are for the same channel: their turns do not matter."""
    here, sure = index(d * s.devices), True
    for e in range(s.first_edge[i], s.first_edge[i + 1]):
        target = s.place[seat.op + s.consumer[e]]
        pair = here + target
        lane, to = seat.lane + s.lane[pair], seat.device + target
        took_s = s.latency_s[pair] + s.edge_bytes[e] * s.seconds_per_byte[pair]
        free_s = s.free_s[lane]
        start_s = max(now, free_s)
        at_s = start_s + took_s
        new = s.seen[to] != s.tensor[e]
        sure &= ((at_s > start_s) | (target == d)) & (not (new & (s.asked_s[lane] == now)))
        at_s = at_s if new else s.arrival_s[to]
        s.free_s[lane] = at_s if new else free_s
        s.asked_s[lane] = now
        s.seen[to] = s.tensor[e]
        s.arrival_s[to] = at_s
        _will_be_there(s, mode, seat, s.consumer[e], target, at_s)
    return sure


@inlined
def _will_be_there(s: Swift, mode: Mode, seat: Seat, reader: int, device: int, at_s: float) -> None:
    """An input of an operator comes to its device at `at_s`; after the last, it is known."""
    j, d = seat.op + reader, seat.device + device
    ready_s = max(s.ready_s[j], at_s)
    s.ready_s[j] = ready_s
    left = s.waiting[j] - 1
    s.waiting[j] = left
    wakes = (left == 0) & (s.running[d] < 0)
    if mode.in_order:
        if wakes and s.future[s.base[d] + s.ahead[d]] == reader:
            s.next_s[d] = ready_s
    else:
        end = s.known_end[d]
        s.known[end] = reader
        s.known_end[d] = end + (left == 0)
        before = s.next_s[d]
        s.next_s[d] = ready_s if wakes & (ready_s < before) else before


@inlined
def _send_in_turn(s: Swift, mode: Mode, seat: Seat, i: int, d: int, now: float) -> bool:
    """Requests for one channel, best consumer first."""
    first, last = s.first_edge[i], s.first_edge[i + 1]
    here, count = index(d * s.devices), _requests(s, seat, first, last)
    sure = True
    for r in range(count):
        pair = here + s.place[seat.op + s.consumer[s.request_edge[r]]]
        sure &= s.asked_s[seat.lane + s.lane[pair]] != now
    for x in range(count):
        r = s.turn[x]
        e = s.request_edge[r]
        target = s.place[seat.op + s.consumer[e]]
        pair = here + target
        lane = seat.lane + s.lane[pair]
        start_s = max(now, s.free_s[lane])
        at_s = start_s + (s.latency_s[pair] + s.edge_bytes[e] * s.seconds_per_byte[pair])
        sure &= (at_s > start_s) | (target == d)
        s.free_s[lane] = at_s
        s.asked_s[lane] = now
        s.request_s[r] = at_s
    for e in range(first, last):
        j = s.consumer[e]
        at_s = s.request_s[s.request[e - first]]
        _will_be_there(s, mode, seat, j, s.place[seat.op + j], at_s)
    return sure


@inlined
def _requests(s: Swift, seat: Seat, first: int, last: int) -> int:
    """One per tensor and target, their turns by best consumer; returns how many."""
    count = 0
    for e in range(first, last):
        j = seat.op + s.consumer[e]
        target = seat.device + s.place[j]
        if s.seen[target] != s.tensor[e]:
            s.seen[target] = s.tensor[e]
            s.last_request[target] = count
            s.request_edge[count] = e
            s.request_place[count] = s.position[j]
            count += 1
        r = s.last_request[target]
        s.request[e - first] = r
        s.request_place[r] = min(s.request_place[r], s.position[j])
    for r in range(count):
        at, mine = r, s.request_place[r]
        while at > 0 and s.request_place[s.turn[at - 1]] > mine:
            s.turn[at] = s.turn[at - 1]
            at -= 1
        s.turn[at] = r
    return count
