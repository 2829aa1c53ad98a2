"""The longest ways from a window of a sequence to the end of all, compiled.

The sequence is walked from its end back to the window, in the order in which devices and channels
were held, so that what follows a window need not be decoded again after a move inside it. Where
transfers do not wait this is exact; where they do, it is until channels serve in another order.
"""

from __future__ import annotations

from placewright.numerics.njit import inner, lean
from placewright.operators.planners.sequences.decode import decode
from placewright.operators.planners.sequences.state import (
    HIGH,
    LOW,
    PENDING,
    TOUCHED,
    VALID,
    SequenceInstance,
    SequenceState,
)


@lean
def open_window(f: SequenceInstance, s: SequenceState, low: int, high: int) -> float:
    """Confine what follows to positions `low` to `high` of a state that is decoded to its end.

    Returns the makespan as the window sees it.
    """
    n, m = len(s.sequence), f.allowed.shape[1]
    _forget(s)
    s.counts[LOW], s.counts[HIGH] = low, high
    for at in range(n - 1, high, -1):
        i = s.sequence[at]
        d = s.place[i]
        way = f.compute_s[i * m + d] + max(s.after_device_s[d], _way_from_end(f, s, at, d, m))
        s.after_device_s[d] = way
        _reach_inputs(f, s, i, d, m, way)
    _list_pending(f, s, high, m)
    return decode(f, s, high + 1, float("inf"))


@lean
def close_window(f: SequenceInstance, s: SequenceState, limit_s: float) -> float:
    """Decode from where the window left off to the end; the makespan, ``inf`` over `limit_s`."""
    s.counts[LOW], s.counts[HIGH] = 0, len(s.sequence) - 1
    return decode(f, s, s.counts[VALID], limit_s)


@inner
def _forget(s: SequenceState) -> None:
    """Clear the ways of the last window."""
    for x in range(s.counts[TOUCHED]):
        s.after_s[s.touched[x]] = -1.0
    s.counts[TOUCHED] = 0
    for d in range(len(s.after_device_s)):
        s.after_device_s[d] = 0.0
    for channel in range(len(s.after_channel_s)):
        s.after_channel_s[channel] = 0.0


@inner
def _reach_inputs(
    f: SequenceInstance, s: SequenceState, i: int, d: int, m: int, way: float
) -> None:
    """Operator `i` on `d` is `way` from the end of all: so are its inputs once they are there."""
    for e in range(f.in_start[i], f.in_start[i + 1]):
        kd = f.in_tensor[e] * m + d
        if s.after_s[kd] < 0.0:
            s.touched[s.counts[TOUCHED]] = kd
            s.counts[TOUCHED] += 1
        s.after_s[kd] = max(s.after_s[kd], way)


@inner
def _way_from_end(f: SequenceInstance, s: SequenceState, at: int, d: int, m: int) -> float:
    """From the end of the operator at a position on `d` over its tensors to the end of all."""
    longest, i = 0.0, s.sequence[at]
    for u in range(f.out_start[i], f.out_start[i + 1]):
        k, target = f.out_tensor[u], s.place[f.reader[u]]
        if target == d:
            longest = max(longest, s.after_s[k * m + d])
        elif not f.contended:
            pair = d * m + target
            took = f.latency_s[pair] + f.size_bytes[k] * f.seconds_per_byte[pair]
            longest = max(longest, took + s.after_s[k * m + target])
    if f.contended:
        for x in range(s.log_start[at + 1] - 1, s.log_start[at] - 1, -1):
            kd, channel = s.log_arrival[x], s.log_channel[x]
            pair = d * m + kd % m
            took = f.latency_s[pair] + f.size_bytes[kd // m] * f.seconds_per_byte[pair]
            way = took + max(s.after_s[kd], s.after_channel_s[channel])
            s.after_channel_s[channel] = way
            longest = max(longest, way)
    return longest


@inner
def _list_pending(f: SequenceInstance, s: SequenceState, high: int, m: int) -> None:
    """Tensors made in the window or before it that are read after it."""
    count = 0
    for x in range(s.counts[TOUCHED]):
        kd = s.touched[x]
        if s.position[f.maker[kd // m]] <= high:
            s.pending[count] = kd
            count += 1
    s.counts[PENDING] = count
