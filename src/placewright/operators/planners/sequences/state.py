"""Arrays of annealing on sequences: the instance, and the state of a search."""

from __future__ import annotations

from typing import NamedTuple

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray

VALUE, BEST, TEMPERATURE = 0, 1, 2
"""Indices of `SequenceState.score`."""

RANDOM, VALID, LOGGED, MOVED, FIRST, CRITICAL, LOW, HIGH, PENDING, TOUCHED, EARLIEST, SENDER = (
    range(12)
)
"""Indices of `SequenceState.counts`: random state; positions decoded; entries in the undo log;
operators moved, and the first position that a move changes; critical operators; first and last
position of the window; tensors in `pending` and in `touched`; the first position that any move of
the window has changed; the first before the window that sends something else after a move."""


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
