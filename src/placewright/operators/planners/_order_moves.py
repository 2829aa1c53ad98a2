"""Simulated annealing on sequences, compiled: who runs where, and what comes before what.

A state is a topological sequence and a placement. It is decoded in the sequence: an operator
starts when its device is through with those before it and its inputs are there. Where transfers
do not wait this is exactly how the judge plays `Dispatch.IN_ORDER`; where they do, channels serve
in the sequence's order, which is near what the judge plays and much faster (a surrogate).

A move changes nothing before its first operator, so decoding goes on from there. It stops as
soon as an operator ends too late for the move to be taken: the threshold is drawn beforehand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.arrays import BoolArray, FloatArray, IntArray
from placewright.compiled import compiled, inlined, lean, released

VALUE, BEST, TEMPERATURE = 0, 1, 2
"""Slots of `Line.score`."""

RANDOM, VALID, LOGGED, MOVED, FIRST, CRITICAL, PLAYED, DECODED = 0, 1, 2, 3, 4, 5, 6, 7
"""Slots of `Line.counts`."""


class Field(NamedTuple):
    """What does not change.

    Attributes
    ----------
    in_start, producer, in_tensor, in_bytes
        CSR by consumer: what it reads.
    out_start, reader
        CSR by producer: who reads it.
    group, group_start, members
        Colocation groups.
    latency_s, seconds_per_byte, channel
        Flat (m * m); zero and -1 within a device.
    tail_s
        Least seconds from an operator's end to the end of all.
    """

    contended: bool
    compute_s: FloatArray
    in_start: IntArray
    producer: IntArray
    in_tensor: IntArray
    in_bytes: FloatArray
    out_start: IntArray
    reader: IntArray
    group: IntArray
    group_start: IntArray
    members: IntArray
    allowed: BoolArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    channel: IntArray
    tail_s: FloatArray


class Line(NamedTuple):
    """Where the search is.

    Attributes
    ----------
    sequence, position, place
        The state; `best_sequence`, `best_place` the best one.
    end_s
        When operators end; right for the first ``counts[VALID]`` of the sequence.
    free_s, latest_s
        Before each position: when devices are free, shape (n + 1, m), and the latest end so far.
    lane_s, arrival_s
        When channels are free; when tensor k is on device d at ``[k * m + d]``, -1 if not sent.
    log_start, log_lane, log_before_s, log_arrival
        What decoding each position has changed in these, to take it back.
    """

    sequence: IntArray
    position: IntArray
    place: IntArray
    best_sequence: IntArray
    best_place: IntArray
    end_s: FloatArray
    free_s: FloatArray
    latest_s: FloatArray
    lane_s: FloatArray
    arrival_s: FloatArray
    log_start: IntArray
    log_lane: IntArray
    log_before_s: FloatArray
    log_arrival: IntArray
    critical: IntArray
    moved: IntArray
    moved_from: IntArray
    score: FloatArray
    counts: IntArray


@compiled
def start_line(
    f: Field, tensors: int, channels: int, sequence: IntArray, place: IntArray, seed: int
) -> Line:
    """A search that starts from a state."""
    n, edges = len(sequence), len(f.producer)
    m = f.allowed.shape[1]
    line = Line(
        sequence.copy(),
        np.empty(n, dtype=np.int64),
        place.copy(),
        sequence.copy(),
        place.copy(),
        np.zeros(n),
        np.zeros((n + 1, m)),
        np.zeros(n + 1),
        np.zeros(channels),
        np.full(tensors * m, -1.0),
        np.zeros(n + 1, dtype=np.int64),
        np.zeros(edges, dtype=np.int64),
        np.zeros(edges),
        np.zeros(edges, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.full(3, np.inf),
        np.zeros(8, dtype=np.int64),
    )
    for at in range(n):
        line.position[sequence[at]] = at
    line.counts[RANDOM] = (seed * 2 + 1) & 0x7FFFFFFF
    line.score[VALUE] = decode(f, line, 0, np.inf)
    line.score[BEST] = line.score[VALUE]
    line.score[TEMPERATURE] = 0.0
    return line


@lean
def decode(f: Field, line: Line, first: int, limit_s: float) -> float:
    """Makespan of the state, decoded from position `first` on; ``inf`` if it is over `limit_s`."""
    n, m = len(line.sequence), f.allowed.shape[1]
    if f.contended:
        _take_back(line, first)
    latest = line.latest_s[first]
    line.counts[PLAYED] += 1
    for at in range(first, n):
        i = line.sequence[at]
        d = line.place[i]
        begin = line.free_s[at, d]
        if f.contended:
            begin = max(begin, _inputs_contended(f, line, i, d, m))
            line.log_start[at + 1] = line.counts[LOGGED]
        else:
            for e in range(f.in_start[i], f.in_start[i + 1]):
                p = f.producer[e]
                pair = line.place[p] * m + d
                begin = max(
                    begin,
                    line.end_s[p] + (f.latency_s[pair] + f.in_bytes[e] * f.seconds_per_byte[pair]),
                )
        end = begin + f.compute_s[i * m + d]
        line.end_s[i] = end
        for other in range(m):
            line.free_s[at + 1, other] = line.free_s[at, other]
        line.free_s[at + 1, d] = end
        latest = max(latest, end)
        line.latest_s[at + 1] = latest
        if not end + f.tail_s[i] <= limit_s:
            line.counts[VALID] = at + 1
            line.counts[DECODED] += at + 1 - first
            return np.inf
    line.counts[VALID] = n
    line.counts[DECODED] += n - first
    return latest  # type: ignore[no-any-return]


@inlined
def _take_back(line: Line, first: int) -> None:
    """Channels and arrivals as they were before position `first`."""
    for x in range(line.counts[LOGGED] - 1, line.log_start[first] - 1, -1):
        line.lane_s[line.log_lane[x]] = line.log_before_s[x]
        line.arrival_s[line.log_arrival[x]] = -1.0
    line.counts[LOGGED] = line.log_start[first]


@inlined
def _inputs_contended(f: Field, line: Line, i: int, d: int, m: int) -> float:
    """When all inputs are there; those not yet sent are sent now, each after the channel's last."""
    ready = 0.0
    for e in range(f.in_start[i], f.in_start[i + 1]):
        p = f.producer[e]
        source = line.place[p]
        if source == d:
            ready = max(ready, line.end_s[p])
            continue
        kd = f.in_tensor[e] * m + d
        there = line.arrival_s[kd]
        if there < 0.0:
            pair = source * m + d
            lane = f.channel[pair]
            before = line.lane_s[lane]
            there = max(before, line.end_s[p]) + (
                f.latency_s[pair] + f.in_bytes[e] * f.seconds_per_byte[pair]
            )
            x = line.counts[LOGGED]
            line.log_lane[x], line.log_before_s[x], line.log_arrival[x] = lane, before, kd
            line.counts[LOGGED] = x + 1
            line.lane_s[lane] = there
            line.arrival_s[kd] = there
        ready = max(ready, there)
    return ready


@released
def anneal(f: Field, line: Line, moves: int, cooling: float) -> None:
    """Try `moves` moves; the temperature is multiplied by `cooling` after each."""
    n = len(line.sequence)
    for _ in range(moves):
        line.counts[MOVED] = 0
        line.counts[FIRST] = n
        i = _pick(line)
        was = line.position[i]
        kind = _draw(line, 16)
        if 4 <= kind < 13:
            _shift(f, line, i)
        if kind < 8:
            _send(f, line, i, _target(f, line, i))
        elif kind >= 13:
            _send_walk(f, line, i, _target(f, line, i))
        if line.counts[FIRST] == n:
            continue
        luck = -np.log((_draw(line, 1 << 20) + 1) / (1 << 20))
        limit = line.score[VALUE] + line.score[TEMPERATURE] * luck
        first = min(line.counts[FIRST], line.counts[VALID])
        value = decode(f, line, first, limit * (1 + 1e-12))
        if value <= limit:
            line.score[VALUE] = value
            if value < line.score[BEST]:
                line.score[BEST] = value
                for x in range(n):
                    line.best_place[x] = line.place[x]
                    line.best_sequence[x] = line.sequence[x]
        else:
            line.counts[VALID] = min(line.counts[VALID], line.counts[FIRST])
            for x in range(line.counts[MOVED] - 1, -1, -1):
                line.place[line.moved[x]] = line.moved_from[x]
            _move_to(line, i, was)
        line.score[TEMPERATURE] *= cooling


@lean
def _draw(line: Line, below: int) -> int:
    """A number in [0, below), by Marsaglia's xorshift on 31 bits, then a mix."""
    x = line.counts[RANDOM]
    x ^= (x << 13) & 0x7FFFFFFF
    x ^= x >> 17
    x ^= (x << 5) & 0x7FFFFFFF
    line.counts[RANDOM] = x
    return int((x * 2654435761 >> 11) % below)


@inlined
def _pick(line: Line) -> int:
    """A critical operator two times of three."""
    if line.counts[CRITICAL] > 0 and _draw(line, 3) > 0:
        return int(line.critical[_draw(line, line.counts[CRITICAL])])
    return _draw(line, len(line.place))


@lean
def _target(f: Field, line: Line, i: int) -> int:
    """A producer's device half of the time, else any."""
    first, last = f.in_start[i], f.in_start[i + 1]
    if last > first and _draw(line, 2) == 0:
        return int(line.place[f.producer[first + _draw(line, last - first)]])
    return _draw(line, f.allowed.shape[1])


@lean
def _send(f: Field, line: Line, i: int, there: int) -> None:
    """Send the group of `i` to a device, if it may go there."""
    g = f.group[i]
    if there == line.place[i] or not f.allowed[g, there]:
        return
    size = f.group_start[g + 1] - f.group_start[g]
    if line.counts[MOVED] + size > len(line.moved):
        return
    for a in range(f.group_start[g], f.group_start[g + 1]):
        j = f.members[a]
        x = line.counts[MOVED]
        line.moved[x], line.moved_from[x] = j, line.place[j]
        line.counts[MOVED] = x + 1
        line.place[j] = there
        line.counts[FIRST] = min(line.counts[FIRST], line.position[j])


@lean
def _send_walk(f: Field, line: Line, i: int, there: int) -> None:
    """Send `i` and what a random walk along tensors within its device meets."""
    here, steps = line.place[i], 1
    while steps < 32 and _draw(line, 2) > 0:
        steps *= 2
    _send(f, line, i, there)
    for _ in range(steps):
        reads, read = f.in_start[i + 1] - f.in_start[i], f.out_start[i + 1] - f.out_start[i]
        if reads + read == 0:
            return
        x = _draw(line, reads + read)
        if x < reads:
            i = f.producer[f.in_start[i] + x]
        else:
            i = f.reader[f.out_start[i] + x - reads]
        if line.place[i] == here:
            _send(f, line, i, there)


@lean
def _shift(f: Field, line: Line, i: int) -> None:
    """Move `i` within the sequence, between its producers and its readers."""
    n, at = len(line.sequence), line.position[i]
    low, high = 0, n - 1
    for e in range(f.in_start[i], f.in_start[i + 1]):
        low = max(low, line.position[f.producer[e]] + 1)
    for e in range(f.out_start[i], f.out_start[i + 1]):
        high = min(high, line.position[f.reader[e]] - 1)
    reach = 4
    while reach < n and _draw(line, 3) > 0:
        reach *= 2
    low, high = max(low, at - reach), min(high, at + reach)
    if high <= low:
        return
    to = low + _draw(line, high - low + 1)
    if to != at:
        _move_to(line, i, to)
        line.counts[FIRST] = min(line.counts[FIRST], min(at, to))


@lean
def _move_to(line: Line, i: int, to: int) -> None:
    """Rotate the sequence so that `i` stands at `to`."""
    at = line.position[i]
    step = 1 if to > at else -1
    while at != to:
        j = line.sequence[at + step]
        line.sequence[at] = j
        line.position[j] = at
        at += step
    line.sequence[to] = i
    line.position[i] = to


@lean
def list_critical(f: Field, line: Line) -> None:
    """From the last end back along what each operator waited for."""
    n, m = len(line.sequence), f.allowed.shape[1]
    if line.counts[VALID] < n:
        decode(f, line, line.counts[VALID], np.inf)
    i = line.sequence[0]
    for j in line.sequence:
        if line.end_s[j] > line.end_s[i]:
            i = j
    count = 0
    while count < n:
        line.critical[count] = i
        count += 1
        at, d = line.position[i], line.place[i]
        begin = line.free_s[at, d]
        best, latest = -1, -1.0
        for e in range(f.in_start[i], f.in_start[i + 1]):
            p = f.producer[e]
            pair = line.place[p] * m + d
            there = line.end_s[p] + f.latency_s[pair] + f.in_bytes[e] * f.seconds_per_byte[pair]
            if f.contended and line.place[p] != d:
                there = line.arrival_s[f.in_tensor[e] * m + d]
            if there > latest:
                best, latest = p, there
        if latest < begin:
            best = -1
            for before in range(at - 1, -1, -1):
                if line.place[line.sequence[before]] == d:
                    best = line.sequence[before]
                    break
        if best < 0:
            break
        i = best
    line.counts[CRITICAL] = count
