"""Decoder of sequences, compiled: the makespan of a topological sequence and a placement.

Operators are taken in the sequence: each starts when its device is free and its inputs are there.
Where transfers do not wait this is exactly how the judge simulates `Dispatch.IN_ORDER`. Where they
do, channels serve in the sequence's order of producers, the judge's in the order in which producers
ended: the same once the sequence has been settled into that order (`settle`).

Only a window of the sequence is decoded again after a move: what comes before it has not changed,
and of what comes after it the longest paths to the end are known (`sequences.tails`).
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import njit_inline, njit_internal, njit_no_refcount
from placewright.operators.planners.sequences.state import (
    BEST,
    HIGH,
    LOGGED,
    PENDING,
    RANDOM,
    TEMPERATURE,
    VALID,
    VALUE,
    SequenceInstance,
    SequenceState,
)

SETTLINGS = 8
"""How often a sequence is sorted at most until it does not change."""


def start_state(
    f: SequenceInstance, tensors: int, channels: int, sequence: IntArray, place: IntArray, seed: int
) -> SequenceState:
    """A decoded state to start a search from."""
    n, edges = len(sequence), len(f.producer)
    m = f.allowed.shape[1]
    s = SequenceState(
        sequence=sequence.copy(),
        position=np.empty(n, dtype=np.int64),
        place=place.copy(),
        best_sequence=sequence.copy(),
        best_place=place.copy(),
        end_s=np.zeros(n),
        free_s=np.zeros((n + 1, m)),
        latest_s=np.zeros(n + 1),
        channel_s=np.zeros(channels),
        arrival_s=np.full(tensors * m, -1.0),
        log_start=np.zeros(n + 1, dtype=np.int64),
        log_channel=np.zeros(edges, dtype=np.int64),
        log_before_s=np.zeros(edges),
        log_arrival=np.zeros(edges, dtype=np.int64),
        after_device_s=np.zeros(m),
        after_channel_s=np.zeros(channels),
        after_s=np.full(tensors * m, -1.0),
        pending=np.zeros(edges, dtype=np.int64),
        touched=np.zeros(edges, dtype=np.int64),
        requests=np.zeros(edges, dtype=np.int64),
        kept=np.zeros(n, dtype=np.int64),
        kept_place=np.zeros(n, dtype=np.int64),
        critical=np.zeros(n, dtype=np.int64),
        moved=np.zeros(n, dtype=np.int64),
        moved_from=np.zeros(n, dtype=np.int64),
        score=np.full(3, np.inf),
        counts=np.zeros(11, dtype=np.int64),
    )
    s.position[sequence] = np.arange(n)
    s.counts[RANDOM] = (seed * 2 + 1) & 0x7FFFFFFF
    s.counts[HIGH] = n - 1
    s.score[VALUE] = decode(f, s, 0, np.inf)
    s.score[BEST] = s.score[VALUE]
    s.score[TEMPERATURE] = 0.0
    return s


@njit_no_refcount
def decode(f: SequenceInstance, s: SequenceState, first: int, limit_s: float) -> float:
    """Makespan of the state, decoded from position `first` on; ``inf`` if it is over `limit_s`.

    Where the window ends before the sequence it is what the state in its last position leads to.
    """
    m, last = f.allowed.shape[1], s.counts[HIGH]
    if f.contended:
        # Channels go back to what they were before `first`. Rows `free_s[first]` and
        # `latest_s[first]` are kept per position, and ends are written before they are read again.
        _undo_log(s, first)
    latest = s.latest_s[first]
    for at in range(first, last + 1):
        i = s.sequence[at]
        d = s.place[i]
        begin = s.free_s[at, d]
        for e in range(f.in_start[i], f.in_start[i + 1]):
            p = f.producer[e]
            if not f.contended:
                pair = s.place[p] * m + d
                took = f.latency_s[pair] + f.in_bytes[e] * f.seconds_per_byte[pair]
                begin = max(begin, s.end_s[p] + took)
            elif s.place[p] == d:
                begin = max(begin, s.end_s[p])
            else:
                begin = max(begin, s.arrival_s[f.in_tensor[e] * m + d])
        end = begin + f.compute_s[i * m + d]
        s.end_s[i] = end
        # A row per position costs m copies here and makes going back free.
        for other in range(m):
            s.free_s[at + 1, other] = s.free_s[at, other]
        s.free_s[at + 1, d] = end
        latest = max(latest, end)
        s.latest_s[at + 1] = latest
        if f.contended:
            _send_outputs(f, s, i, d, m)
            s.log_start[at + 1] = s.counts[LOGGED]
        # The operator ends too late for any continuation: the move will be refused. `not <=` also
        # stops at ``nan``.
        if not end + f.tail_s[i] <= limit_s:
            s.counts[VALID] = at + 1
            return np.inf
    s.counts[VALID] = last + 1
    if last + 1 == len(s.sequence):
        return latest  # type: ignore[no-any-return]
    return max(latest, _after(f, s, m, last))  # type: ignore[no-any-return]


@njit_inline
def _after(f: SequenceInstance, s: SequenceState, m: int, last: int) -> float:
    """The makespan if what comes after position `last` does not change."""
    latest = 0.0
    for d in range(m):
        latest = max(latest, s.free_s[last + 1, d] + s.after_device_s[d])
    if f.contended:
        for channel in range(len(s.channel_s)):
            latest = max(latest, s.channel_s[channel] + s.after_channel_s[channel])
    for x in range(s.counts[PENDING]):
        kd = s.pending[x]
        k, d = kd // m, kd % m
        # On its own device a tensor is there when its producer ends; its pair has no channel (-1).
        there = s.end_s[f.tensor_producer[k]]
        pair = s.place[f.tensor_producer[k]] * m + d
        if f.channel[pair] >= 0:
            if f.contended:
                there = s.arrival_s[kd]
            else:
                there += f.latency_s[pair] + f.size_bytes[k] * f.seconds_per_byte[pair]
        latest = max(latest, there + s.after_s[kd])
    return latest


@njit_inline
def _undo_log(s: SequenceState, first: int) -> None:
    """Undo the log: channels and arrivals as they were before position `first`."""
    # Backwards, since one channel may have several entries: the oldest must win.
    for x in range(s.counts[LOGGED] - 1, s.log_start[first] - 1, -1):
        s.channel_s[s.log_channel[x]] = s.log_before_s[x]
        s.arrival_s[s.log_arrival[x]] = -1.0
    s.counts[LOGGED] = s.log_start[first]


@njit_inline
def _send_outputs(f: SequenceInstance, s: SequenceState, i: int, d: int, m: int) -> None:
    """Send the outputs of operator `i` to every other device that reads them, next reader first."""
    first = f.out_start[i]
    # Insertion sort of uses by the position of the reader, stable: rule C4's best reader first,
    # then the lower tensor. A tensor is sent at the first of its readers on a device.
    for u in range(first, f.out_start[i + 1]):
        at = u - first
        while at > 0 and s.position[f.reader[s.requests[at - 1]]] > s.position[f.reader[u]]:
            s.requests[at] = s.requests[at - 1]
            at -= 1
        s.requests[at] = u
    for x in range(f.out_start[i + 1] - first):
        k, target = f.out_tensor[s.requests[x]], s.place[f.reader[s.requests[x]]]
        kd = k * m + target
        if target == d or s.arrival_s[kd] >= 0.0:
            continue
        pair = d * m + target
        channel = f.channel[pair]
        before = s.channel_s[channel]
        there = max(before, s.end_s[i]) + (
            f.latency_s[pair] + f.size_bytes[k] * f.seconds_per_byte[pair]
        )
        y = s.counts[LOGGED]
        s.log_channel[y], s.log_before_s[y], s.log_arrival[y] = channel, before, kd
        s.counts[LOGGED] = y + 1
        s.channel_s[channel] = there
        s.arrival_s[kd] = there


@njit_no_refcount
def settle(f: SequenceInstance, s: SequenceState) -> float:
    """Sort a decoded sequence by ends until it is in the order in which the judge's channels serve.

    Returns the makespan then, which is the judge's where no two operators end at one time.
    """
    value = s.latest_s[len(s.sequence)]
    for _ in range(SETTLINGS):
        # Sorting by end keeps producers first: they end no later than what reads them, and equal
        # ends stay as they are.
        first = _sorted_by_end(f, s)
        if first == len(s.sequence):
            break
        value = decode(f, s, first, np.inf)
    return value  # type: ignore[no-any-return]


@njit_internal
def _sorted_by_end(f: SequenceInstance, s: SequenceState) -> int:
    """Sort by insertion, since little is out of place; the first position that changed.

    That of a producer of what moved counts too: it sends to its next reader first.
    """
    n = len(s.sequence)
    first = n
    for x in range(1, n):
        i, at = s.sequence[x], x
        while at > 0 and s.end_s[s.sequence[at - 1]] > s.end_s[i]:
            s.sequence[at] = s.sequence[at - 1]
            s.position[s.sequence[at]] = at
            at -= 1
        if at < x:
            s.sequence[at] = i
            s.position[i] = at
            first = min(first, at)
            for e in range(f.in_start[i], f.in_start[i + 1]):
                first = min(first, s.position[f.producer[e]])
    return first
