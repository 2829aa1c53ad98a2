"""Sequences decoded, compiled: who runs where, what comes before what, and when all of it ends.

A state is a topological sequence and a placement. It is decoded in the sequence: an operator
starts when its device is through with those before it and its inputs are there. Where transfers
do not wait this is exactly how the judge plays `Dispatch.IN_ORDER`. Where they do, channels serve
in the sequence's order of producers, the judge in the order in which producers ended: the same
once the sequence has been settled into that order (`settle`).

Only a window of the sequence is decoded again after a move: what comes before it has not changed,
and of what comes after it the longest ways to the end of all are known (`sequences.tails`).
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import inlined, inner, lean
from placewright.operators.planners.sequences.state import (
    BEST,
    DUES,
    HIGH,
    LOGGED,
    RANDOM,
    TEMPERATURE,
    VALID,
    VALUE,
    SequenceInstance,
    SequenceState,
)

SETTLINGS = 8
"""Times that a sequence is sorted at most until it stays as it is."""


def start_line(
    f: SequenceInstance, tensors: int, channels: int, sequence: IntArray, place: IntArray, seed: int
) -> SequenceState:
    """A search that starts from a state."""
    n, edges = len(sequence), len(f.producer)
    m = f.allowed.shape[1]
    line = SequenceState(
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
        np.zeros(m),
        np.zeros(channels),
        np.full(tensors * m, -1.0),
        np.zeros(edges, dtype=np.int64),
        np.zeros(edges, dtype=np.int64),
        np.zeros(edges, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.full(3, np.inf),
        np.zeros(10, dtype=np.int64),
    )
    line.position[sequence] = np.arange(n)
    line.counts[RANDOM] = (seed * 2 + 1) & 0x7FFFFFFF
    line.counts[HIGH] = n - 1
    line.score[VALUE] = decode(f, line, 0, np.inf)
    line.score[BEST] = line.score[VALUE]
    line.score[TEMPERATURE] = 0.0
    return line


@lean
def decode(f: SequenceInstance, line: SequenceState, first: int, limit_s: float) -> float:
    """Makespan of the state, decoded from position `first` on; ``inf`` if it is over `limit_s`.

    Where the window ends before the sequence it is what the state in its last position leads to.
    """
    m, last = f.allowed.shape[1], line.counts[HIGH]
    if f.contended:
        _take_back(line, first)
    latest = line.latest_s[first]
    for at in range(first, last + 1):
        i = line.sequence[at]
        d = line.place[i]
        begin = line.free_s[at, d]
        for e in range(f.in_start[i], f.in_start[i + 1]):
            p = f.producer[e]
            if not f.contended:
                pair = line.place[p] * m + d
                took = f.latency_s[pair] + f.in_bytes[e] * f.seconds_per_byte[pair]
                begin = max(begin, line.end_s[p] + took)
            elif line.place[p] == d:
                begin = max(begin, line.end_s[p])
            else:
                begin = max(begin, line.arrival_s[f.in_tensor[e] * m + d])
        end = begin + f.compute_s[i * m + d]
        line.end_s[i] = end
        for other in range(m):
            line.free_s[at + 1, other] = line.free_s[at, other]
        line.free_s[at + 1, d] = end
        latest = max(latest, end)
        line.latest_s[at + 1] = latest
        if f.contended:
            _book(f, line, i, d, m)
            line.log_start[at + 1] = line.counts[LOGGED]
        if not end + f.tail_s[i] <= limit_s:
            line.counts[VALID] = at + 1
            return np.inf
    line.counts[VALID] = last + 1
    if last + 1 == len(line.sequence):
        return latest  # type: ignore[no-any-return]
    return max(latest, _after(f, line, m, last))  # type: ignore[no-any-return]


@inlined
def _after(f: SequenceInstance, line: SequenceState, m: int, last: int) -> float:
    """When all ends if what comes after position `last` stays as it is."""
    latest = 0.0
    for d in range(m):
        latest = max(latest, line.free_s[last + 1, d] + line.after_device_s[d])
    if f.contended:
        for lane in range(len(line.lane_s)):
            latest = max(latest, line.lane_s[lane] + line.after_lane_s[lane])
    for x in range(line.counts[DUES]):
        kd = line.due[x]
        k, d = kd // m, kd % m
        there = line.end_s[f.maker[k]]
        pair = line.place[f.maker[k]] * m + d
        if f.channel[pair] >= 0:
            if f.contended:
                there = line.arrival_s[kd]
            else:
                there += f.latency_s[pair] + f.size_bytes[k] * f.seconds_per_byte[pair]
        latest = max(latest, there + line.after_s[kd])
    return latest


@inlined
def _take_back(line: SequenceState, first: int) -> None:
    """Channels and arrivals as they were before position `first`."""
    for x in range(line.counts[LOGGED] - 1, line.log_start[first] - 1, -1):
        line.lane_s[line.log_lane[x]] = line.log_before_s[x]
        line.arrival_s[line.log_arrival[x]] = -1.0
    line.counts[LOGGED] = line.log_start[first]


@inlined
def _book(f: SequenceInstance, line: SequenceState, i: int, d: int, m: int) -> None:
    """Send what operator `i` made to every other device where it is read, next reader first."""
    first = f.out_start[i]
    for u in range(first, f.out_start[i + 1]):
        at = u - first
        while at > 0 and line.position[f.reader[line.asks[at - 1]]] > line.position[f.reader[u]]:
            line.asks[at] = line.asks[at - 1]
            at -= 1
        line.asks[at] = u
    for x in range(f.out_start[i + 1] - first):
        k, target = f.out_tensor[line.asks[x]], line.place[f.reader[line.asks[x]]]
        kd = k * m + target
        if target == d or line.arrival_s[kd] >= 0.0:
            continue
        pair = d * m + target
        lane = f.channel[pair]
        before = line.lane_s[lane]
        there = max(before, line.end_s[i]) + (
            f.latency_s[pair] + f.size_bytes[k] * f.seconds_per_byte[pair]
        )
        y = line.counts[LOGGED]
        line.log_lane[y], line.log_before_s[y], line.log_arrival[y] = lane, before, kd
        line.counts[LOGGED] = y + 1
        line.lane_s[lane] = there
        line.arrival_s[kd] = there


@lean
def settle(f: SequenceInstance, line: SequenceState) -> float:
    """Sort a decoded sequence by ends until it is in the order in which the judge's channels serve.

    Returns
    -------
    The makespan then, which is the judge's where no two operators end at one time.
    """
    value = line.latest_s[len(line.sequence)]
    for _ in range(SETTLINGS):
        first = _sorted_by_end(line)
        if first == len(line.sequence):
            break
        value = decode(f, line, first, np.inf)
    return value  # type: ignore[no-any-return]


@inner
def _sorted_by_end(line: SequenceState) -> int:
    """Sort by insertion, since little is out of place; the first position that changed."""
    n = len(line.sequence)
    first = n
    for x in range(1, n):
        i, at = line.sequence[x], x
        while at > 0 and line.end_s[line.sequence[at - 1]] > line.end_s[i]:
            line.sequence[at] = line.sequence[at - 1]
            line.position[line.sequence[at]] = at
            at -= 1
        if at < x:
            line.sequence[at] = i
            line.position[i] = at
            first = min(first, at)
    return first
