"""What annealing on sequences works with: the problem laid out, and where the search is."""

from __future__ import annotations

from typing import NamedTuple

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray

VALUE, BEST, TEMPERATURE = 0, 1, 2
"""Slots of `Line.score`."""

RANDOM, VALID, LOGGED, MOVED, FIRST, CRITICAL, LOW, HIGH, DUES, TOUCHED = range(10)
"""Slots of `Line.counts`; `LOW` and `HIGH` are the first and the last position of the window."""


class SequenceInstance(NamedTuple):
    """What does not change.

    Attributes
    ----------
    in_start, producer, in_tensor, in_bytes
        CSR by consumer: what it reads.
    maker, size_bytes
        By tensor: its producer and its bytes.
    out_start, reader, out_tensor
        CSR by producer: who reads it, and which tensor.
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
    maker: IntArray
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
    after_device_s, after_lane_s
        Least seconds from when a device or a channel is through with the window to the end of all.
    after_s
        The same from when tensor k is on device d, at ``[k * m + d]``, -1 if nobody after the
        window reads it there; `due` lists those made in the window or before it.
    asks
        Scratch: who asks for a producer's tensors, first come first.
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
    lane_s: FloatArray
    arrival_s: FloatArray
    log_start: IntArray
    log_lane: IntArray
    log_before_s: FloatArray
    log_arrival: IntArray
    after_device_s: FloatArray
    after_lane_s: FloatArray
    after_s: FloatArray
    due: IntArray
    touched: IntArray
    asks: IntArray
    kept: IntArray
    kept_place: IntArray
    critical: IntArray
    moved: IntArray
    moved_from: IntArray
    score: FloatArray
    counts: IntArray
