"""The longest ways from a window of a sequence to the end of all, compiled.

The sequence is walked from its end back to the window, in the order in which devices and channels
were held, so that what follows a window need not be decoded again after a move inside it. Where
transfers do not wait this is exact; where they do, it is until channels serve in another order.
"""

from __future__ import annotations

from placewright.numerics.njit import inner, lean
from placewright.operators.planners.sequences.decode import decode
from placewright.operators.planners.sequences.state import (
    DUES,
    HIGH,
    LOW,
    TOUCHED,
    VALID,
    SequenceInstance,
    SequenceState,
)


@lean
def open_window(f: SequenceInstance, line: SequenceState, low: int, high: int) -> float:
    """Confine what follows to positions `low` to `high` of a line that is decoded to its end.

    Returns
    -------
    The makespan as the window sees it.
    """
    n, m = len(line.sequence), f.allowed.shape[1]
    _forget(line)
    line.counts[LOW], line.counts[HIGH] = low, high
    for at in range(n - 1, high, -1):
        i = line.sequence[at]
        d = line.place[i]
        way = f.compute_s[i * m + d] + max(line.after_device_s[d], _way_from_end(f, line, at, d, m))
        line.after_device_s[d] = way
        _reach_inputs(f, line, i, d, m, way)
    _list_dues(f, line, high, m)
    return decode(f, line, high + 1, float("inf"))


@lean
def close_window(f: SequenceInstance, line: SequenceState, limit_s: float) -> float:
    """Decode from where the window left off to the end; the makespan, ``inf`` over `limit_s`."""
    line.counts[LOW], line.counts[HIGH] = 0, len(line.sequence) - 1
    return decode(f, line, line.counts[VALID], limit_s)


@inner
def _forget(line: SequenceState) -> None:
    """No ways known."""
    for x in range(line.counts[TOUCHED]):
        line.after_s[line.touched[x]] = -1.0
    line.counts[TOUCHED] = 0
    for d in range(len(line.after_device_s)):
        line.after_device_s[d] = 0.0
    for lane in range(len(line.after_lane_s)):
        line.after_lane_s[lane] = 0.0


@inner
def _reach_inputs(
    f: SequenceInstance, line: SequenceState, i: int, d: int, m: int, way: float
) -> None:
    """Operator `i` on `d` is `way` from the end of all: so are its inputs once they are there."""
    for e in range(f.in_start[i], f.in_start[i + 1]):
        kd = f.in_tensor[e] * m + d
        if line.after_s[kd] < 0.0:
            line.touched[line.counts[TOUCHED]] = kd
            line.counts[TOUCHED] += 1
        line.after_s[kd] = max(line.after_s[kd], way)


@inner
def _way_from_end(f: SequenceInstance, line: SequenceState, at: int, d: int, m: int) -> float:
    """From the end of the operator at a position on `d` over its tensors to the end of all."""
    longest, i = 0.0, line.sequence[at]
    for u in range(f.out_start[i], f.out_start[i + 1]):
        k, target = f.out_tensor[u], line.place[f.reader[u]]
        if target == d:
            longest = max(longest, line.after_s[k * m + d])
        elif not f.contended:
            pair = d * m + target
            took = f.latency_s[pair] + f.size_bytes[k] * f.seconds_per_byte[pair]
            longest = max(longest, took + line.after_s[k * m + target])
    if f.contended:
        for x in range(line.log_start[at + 1] - 1, line.log_start[at] - 1, -1):
            kd, lane = line.log_arrival[x], line.log_lane[x]
            pair = d * m + kd % m
            took = f.latency_s[pair] + f.size_bytes[kd // m] * f.seconds_per_byte[pair]
            way = took + max(line.after_s[kd], line.after_lane_s[lane])
            line.after_lane_s[lane] = way
            longest = max(longest, way)
    return longest


@inner
def _list_dues(f: SequenceInstance, line: SequenceState, high: int, m: int) -> None:
    """Tensors made in the window or before it that somebody after it reads."""
    count = 0
    for x in range(line.counts[TOUCHED]):
        kd = line.touched[x]
        if line.position[f.maker[kd // m]] <= high:
            line.due[count] = kd
            count += 1
    line.counts[DUES] = count
