"""Decoder of sequences, compiled: the makespan of a topological sequence and a placement.

Operators are taken in the sequence: each starts when its device is free and its inputs are there.
Where transfers do not wait this is exactly how the judge simulates `Dispatch.IN_ORDER`. Where they
do, channels serve in the sequence's order of producers, the judge's in the order in which producers
ended: the same once the sequence has been settled into that order (`settle`).

Only a window of the sequence is decoded again after a move: what comes before it has not changed,
and of what comes after it the longest paths to the end are known (`sequences.moves`).

A move changes when the producers of its operator send, which may be long before the window. An
instance that is `late` leaves that as it was, and sends what is missing when it is read: an
estimate, mostly of too much, until the window is closed and everything is decoded again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import index, njit_inline, njit_internal, njit_no_refcount

VALUE, BEST, TEMPERATURE = 0, 1, 2
"""Indices of `SequenceState.score`."""

RANDOM, VALID, LOGGED, MOVED, FIRST, CRITICAL, LOW, HIGH, PENDING, TOUCHED, EARLIEST, SENDER = (
    range(12)
)
"""Indices of `SequenceState.counts`: random state; positions decoded; entries in the undo log;
operators moved, and the first position that a move changes; critical operators; first and last
position of the window; tensors in `pending` and in `touched`; the first position that any move of
the window has changed; the first before the window that sends something else after a move."""


@by_reference
class SequenceInstance(NamedTuple):
    """A problem as the kernels read it; nothing here changes.

    Attributes
    ----------
    contended
        Whether transfers wait for each other.
    late
        Whether a window estimates transfers from before it; see `sequences.decode`.
    in_start, producer, in_tensor, in_bytes
        CSR by consumer: what it reads.
    tensor_producer, size_bytes
        By tensor: its producer and its bytes.
    out_start, reader, out_tensor
        CSR by producer: readers and tensors.
    group, group_start, members
        Colocation groups.
    latency_s, seconds_per_byte, channel
        Flat (m * m); zero and -1 within a device.
    tail_s
        Least seconds from an operator's end to the end.
    """

    contended: bool
    late: bool
    compute_s: FloatArray
    in_start: IntArray
    producer: IntArray
    in_tensor: IntArray
    in_bytes: FloatArray
    tensor_producer: IntArray
    size_bytes: FloatArray
    out_start: IntArray
    reader: IntArray
    out_tensor: IntArray
    group: IntArray
    group_start: IntArray
    members: IntArray
    allowed: BoolArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    channel: IntArray
    tail_s: FloatArray


@by_reference
class SequenceState(NamedTuple):
    """A topological sequence with a placement, decoded, and what it takes to undo a move.

    Decoding goes through positions and keeps what it changed of channels and arrivals in a log, so
    that it can go back to any position. Entries x of position p are ``log_start[p] <= x <
    log_start[p + 1]``::

        position       0        1     2            3
        log_start      0        2     2            5
        log_channel    c0  c1         c1  c2  c1          channel of a transfer
        log_before_s   .   .          .   .   .           when it was free before
        log_arrival    kd  kd         kd  kd  kd          tensor k and device d as k * m + d

    Attributes
    ----------
    sequence, position, place
        Operators by position, positions by operator, devices; `best_sequence` and `best_place` are
        those of the best state found.
    end_s
        When operators end; valid for the first ``counts[VALID]`` of the sequence.
    free_s, latest_s
        Before each position: when devices are free, shape (n + 1, m), and the latest end so far.
    channel_s, arrival_s
        When channels are free; when tensor k is on device d at ``[k * m + d]``, -1 if not sent.
    after_device_s, after_channel_s
        Least seconds from when a device or a channel has finished the window to the end.
    after_s
        The same from when tensor k is on device d, at ``[k * m + d]``, -1 if it is not read
        there after the window; `pending` lists those made in the window or before it.
    left_s
        By device: seconds of operators that are still to be decoded, and then to the end.
    requests
        Scratch: tensor uses of one producer, by the position of the reader.
    kept, kept_place
        The window as it was when it was opened, by position.
    """

    sequence: IntArray
    position: IntArray
    place: IntArray
    best_sequence: IntArray
    best_place: IntArray
    end_s: FloatArray
    free_s: FloatArray
    latest_s: FloatArray
    channel_s: FloatArray
    arrival_s: FloatArray
    log_start: IntArray
    log_channel: IntArray
    log_before_s: FloatArray
    log_arrival: IntArray
    after_device_s: FloatArray
    left_s: FloatArray
    after_channel_s: FloatArray
    after_s: FloatArray
    pending: IntArray
    touched: IntArray
    requests: IntArray
    kept: IntArray
    kept_place: IntArray
    critical: IntArray
    moved: IntArray
    moved_from: IntArray
    score: FloatArray
    counts: IntArray


SURELY = 1 - 1e-9
"""Factor on sums of seconds that must not be too large: they are rounded in another order."""

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
        # Every use may be sent once as the sequence was, and once late.
        log_channel=np.zeros(2 * edges, dtype=np.int64),
        log_before_s=np.zeros(2 * edges),
        log_arrival=np.zeros(2 * edges, dtype=np.int64),
        after_device_s=np.zeros(m),
        left_s=np.zeros(m),
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
        counts=np.zeros(12, dtype=np.int64),
    )
    s.position[sequence] = np.arange(n)
    s.counts[RANDOM] = (seed * 2 + 1) & 0x7FFFFFFF
    s.counts[HIGH] = n - 1
    s.score[VALUE] = decode(f, s, 0, np.inf)
    s.score[BEST] = s.score[VALUE]
    s.score[TEMPERATURE] = 0.0
    return s


@njit_no_refcount
def overloaded(f: SequenceInstance, s: SequenceState, first: int, limit_s: float) -> bool:
    """Whether a device has too much work from position `first` on to end by `limit_s`.

    Nothing is decoded. Adds up, for `decode`, what is left for each device, its share after the
    window included.
    """
    m, last = f.allowed.shape[1], s.counts[HIGH]
    confined = last + 1 < len(s.sequence)
    for each in range(m):
        d = index(each)
        s.left_s[d] = s.after_device_s[d] if confined else 0.0
    for at in range(first, last + 1):
        i = index(s.sequence[index(at)])
        d = index(s.place[i])
        s.left_s[d] += f.compute_s[index(i * m + d)]
    for each in range(m):
        d = index(each)
        if (s.free_s[index(first), d] + s.left_s[d]) * SURELY > limit_s:
            return True
    return False


@njit_no_refcount
def decode(f: SequenceInstance, s: SequenceState, first: int, limit_s: float) -> float:
    """Makespan of the state, decoded from position `first` on; ``inf`` if it is over `limit_s`.

    Where the window ends before the sequence it is what the state in its last position leads to.
    `overloaded` has been asked before if there is a limit.
    """
    m, last = f.allowed.shape[1], s.counts[HIGH]
    if f.contended:
        # Channels go back to what they were before `first`. Rows `free_s[first]` and
        # `latest_s[first]` are kept per position, and ends are written before they are read again.
        _undo_log(s, first)
    latest = s.latest_s[index(first)]
    for position in range(first, last + 1):
        at = index(position)
        i = index(s.sequence[at])
        d = index(s.place[i])
        begin = s.free_s[at, d]
        for use in range(f.in_start[i], f.in_start[index(i + 1)]):
            e = index(use)
            p = index(f.producer[e])
            if not f.contended:
                pair = index(s.place[p] * m + d)
                took = f.latency_s[pair] + f.in_bytes[e] * f.seconds_per_byte[pair]
                begin = max(begin, s.end_s[p] + took)
            elif s.place[p] == d:
                begin = max(begin, s.end_s[p])
            else:
                kd = index(f.in_tensor[e] * m + d)
                if s.arrival_s[kd] < 0.0:
                    _send(f, s, kd, p, index(s.place[p] * m + d))
                begin = max(begin, s.arrival_s[kd])
        took_s = f.compute_s[index(i * m + d)]
        end = begin + took_s
        s.end_s[i] = end
        # A row per position costs m copies here and makes going back free.
        after = index(at + 1)
        for other in range(m):
            s.free_s[after, index(other)] = s.free_s[at, index(other)]
        s.free_s[after, d] = end
        latest = max(latest, end)
        s.latest_s[after] = latest
        if f.contended:
            _send_outputs(f, s, i, d, m)
            s.log_start[after] = s.counts[LOGGED]
        # The operator ends too late for any continuation: the move will be refused. `not <=` also
        # stops at ``nan``.
        s.left_s[d] -= took_s
        if not end + max(f.tail_s[i], s.left_s[d] * SURELY) <= limit_s:
            s.counts[VALID] = position + 1
            return np.inf
    s.counts[VALID] = last + 1
    if last + 1 == len(s.sequence):
        return latest  # type: ignore[no-any-return]
    return max(latest, _after(f, s, m, last))  # type: ignore[no-any-return]


@njit_inline
def _after(f: SequenceInstance, s: SequenceState, m: int, last: int) -> float:
    """The makespan if what comes after position `last` does not change."""
    latest, end = 0.0, index(last + 1)
    for each in range(m):
        d = index(each)
        latest = max(latest, s.free_s[end, d] + s.after_device_s[d])
    if f.contended:
        for each in range(len(s.channel_s)):
            channel = index(each)
            latest = max(latest, s.channel_s[channel] + s.after_channel_s[channel])
    for x in range(s.counts[PENDING]):
        kd = index(s.pending[index(x)])
        k = index(kd // m)
        # On its own device a tensor is there when its producer ends; its pair has no channel (-1).
        made = index(f.tensor_producer[k])
        there = s.end_s[made]
        pair = index(s.place[made] * m + kd % m)
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
    for entry in range(s.counts[LOGGED] - 1, s.log_start[first] - 1, -1):
        x = index(entry)
        s.channel_s[index(s.log_channel[x])] = s.log_before_s[x]
        s.arrival_s[index(s.log_arrival[x])] = -1.0
    s.counts[LOGGED] = s.log_start[first]


@njit_inline
def _send_outputs(f: SequenceInstance, s: SequenceState, i: int, d: int, m: int) -> None:
    """Send the outputs of operator `i` to every other device that reads them, next reader first."""
    first, last = f.out_start[i], f.out_start[index(i + 1)]
    # Insertion sort of uses by the position of the reader, stable: rule C4's best reader first,
    # then the lower tensor. A tensor is sent at the first of its readers on a device.
    count = 0
    for u in range(first, last):
        reader = index(f.reader[index(u)])
        if s.place[reader] == d:
            continue
        at, behind = count, s.position[reader]
        while at > 0 and s.position[index(f.reader[index(s.requests[index(at - 1)])])] > behind:
            s.requests[index(at)] = s.requests[index(at - 1)]
            at -= 1
        s.requests[index(at)] = u
        count += 1
    for x in range(count):
        u = index(s.requests[index(x)])
        k, target = index(f.out_tensor[u]), index(s.place[index(f.reader[u])])
        kd = index(k * m + target)
        if s.arrival_s[kd] >= 0.0:
            continue
        _send(f, s, kd, i, index(d * m + target))


@njit_inline
def _send(f: SequenceInstance, s: SequenceState, kd: int, i: int, pair: int) -> None:
    """Send tensor and device `kd`, made by operator `i`, when its channel is free."""
    k, channel = index(kd // f.allowed.shape[1]), index(f.channel[pair])
    before = s.channel_s[channel]
    there = max(before, s.end_s[i]) + (
        f.latency_s[pair] + f.size_bytes[k] * f.seconds_per_byte[pair]
    )
    y = index(s.counts[LOGGED])
    s.log_channel[y], s.log_before_s[y], s.log_arrival[y] = channel, before, kd
    s.counts[LOGGED] = y + 1
    s.channel_s[channel] = there
    s.arrival_s[kd] = there


@njit_internal
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
