"""The longest paths from a window of a sequence to the end, compiled.

The sequence is traversed from its end back to the window, in the order in which devices and
channels were held, so that what follows a window need not be decoded again after a move inside it.
Where transfers do not wait this is exact; where they do, it is until channels serve in another
order.
"""

from __future__ import annotations

from placewright.numerics.njit import njit_internal, njit_no_refcount
from placewright.operators.planners.sequences.decode import decode, overloaded
from placewright.operators.planners.sequences.state import (
    HIGH,
    LOW,
    PENDING,
    TOUCHED,
    VALID,
    SequenceInstance,
    SequenceState,
)


@njit_no_refcount
def open_window(f: SequenceInstance, s: SequenceState, low: int, high: int) -> float:
    """Confine what follows to positions `low` to `high` of a state that is decoded to its end.

    Returns the makespan as the window sees it.
    """
    n, m = len(s.sequence), f.allowed.shape[1]
    _clear_paths(s)
    s.counts[LOW], s.counts[HIGH] = low, high
    # Backwards: when an operator is met, the paths behind its readers, its device and its
    # channels are known. `after_*` then hold the path of the earliest one after the window.
    for at in range(n - 1, high, -1):
        i = s.sequence[at]
        d = s.place[i]
        path_s = f.compute_s[i * m + d] + max(s.after_device_s[d], _path_from_end(f, s, at, d, m))
        s.after_device_s[d] = path_s
        _reach_inputs(f, s, i, d, m, path_s)
    _list_pending(f, s, high, m)
    # No operator is decoded: this undoes the log down to the window's end and adds up the paths.
    return decode(f, s, high + 1, float("inf"))


@njit_no_refcount
def close_window(f: SequenceInstance, s: SequenceState, limit_s: float) -> float:
    """Decode from where the window left off to the end; the makespan, ``inf`` over `limit_s`."""
    s.counts[LOW], s.counts[HIGH] = 0, len(s.sequence) - 1
    if overloaded(f, s, s.counts[VALID], limit_s):
        return float("inf")
    return decode(f, s, s.counts[VALID], limit_s)


@njit_internal
def _clear_paths(s: SequenceState) -> None:
    """Clear the paths of the last window."""
    for x in range(s.counts[TOUCHED]):
        s.after_s[s.touched[x]] = -1.0
    s.counts[TOUCHED] = 0
    for d in range(len(s.after_device_s)):
        s.after_device_s[d] = 0.0
    for channel in range(len(s.after_channel_s)):
        s.after_channel_s[channel] = 0.0


@njit_internal
def _reach_inputs(
    f: SequenceInstance, s: SequenceState, i: int, d: int, m: int, path_s: float
) -> None:
    """Operator `i` starts `path_s` before the end; its inputs are needed on `d` by then."""
    for e in range(f.in_start[i], f.in_start[i + 1]):
        kd = f.in_tensor[e] * m + d
        if s.after_s[kd] < 0.0:
            s.touched[s.counts[TOUCHED]] = kd
            s.counts[TOUCHED] += 1
        s.after_s[kd] = max(s.after_s[kd], path_s)


@njit_internal
def _path_from_end(f: SequenceInstance, s: SequenceState, at: int, d: int, m: int) -> float:
    """Longest path from the end of the operator at a position over its tensors to the end."""
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
        # The transfers that it sent, last first: each delays those behind it on its channel.
        for x in range(s.log_start[at + 1] - 1, s.log_start[at] - 1, -1):
            kd, channel = s.log_arrival[x], s.log_channel[x]
            pair = d * m + kd % m
            took = f.latency_s[pair] + f.size_bytes[kd // m] * f.seconds_per_byte[pair]
            path_s = took + max(s.after_s[kd], s.after_channel_s[channel])
            s.after_channel_s[channel] = path_s
            longest = max(longest, path_s)
    return longest


@njit_internal
def _list_pending(f: SequenceInstance, s: SequenceState, high: int, m: int) -> None:
    """Tensors made in the window or before it that are read after it."""
    count = 0
    for x in range(s.counts[TOUCHED]):
        kd = s.touched[x]
        if s.position[f.tensor_producer[kd // m]] <= high:
            s.pending[count] = kd
            count += 1
    s.counts[PENDING] = count
