"""Memory over time of a played plan, from its spans."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.aliases import home_bytes, views
from placewright.operators.problem import OperatorProblem
from placewright.planning.trace import MemoryCurve


def memory_curves(
    problem: OperatorProblem,
    placement: IntArray,
    ends: tuple[FloatArray, FloatArray],
    moves: tuple[IntArray, IntArray, FloatArray],
) -> tuple[MemoryCurve, ...]:
    """One curve per device.

    Parameters
    ----------
    ends
        Start and end seconds of every operator.
    moves
        Tensor, target and end seconds of every transfer.
    """
    device, from_s, until_s, held = _lives(problem, placement, ends, moves)
    resident = np.bincount(placement, np.ceil(problem.resident_bytes), minlength=problem.m)
    return tuple(
        _curve(d, resident[d], from_s[at], until_s[at], held[at], problem.memory_bytes[d])
        for d in range(problem.m)
        for at in [np.flatnonzero(device == d)]
    )


def resident_curves(problem: OperatorProblem, resident_bytes: IntArray) -> tuple[MemoryCurve, ...]:
    """One flat curve per device, where nothing but what lives there counts; shape (m,)."""
    return tuple(
        MemoryCurve(d, np.zeros(1), np.array([held]), capacity)
        for d, (held, capacity) in enumerate(
            zip(resident_bytes.astype(float), problem.memory_bytes.tolist(), strict=True)
        )
    )


def _lives(
    p: OperatorProblem,
    placement: IntArray,
    ends: tuple[FloatArray, FloatArray],
    moves: tuple[IntArray, IntArray, FloatArray],
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Device, birth, death and bytes of every copy of every tensor."""
    start_s, end_s = ends
    sent, target, arrived_s = moves
    source = placement[p.tensor_producer]
    from_s = np.full((p.t, p.m), np.inf)
    until_s = np.full((p.t, p.m), -np.inf)
    from_s[np.arange(p.t), source] = start_s[p.tensor_producer]
    until_s[np.arange(p.t), source] = end_s[p.tensor_producer]
    from_s[sent, target] = arrived_s
    np.maximum.at(until_s, (sent, source[sent]), arrived_s)
    read = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    np.maximum.at(until_s, (read, placement[p.consumers]), end_s[p.consumers])
    for k in views(p).tolist():
        at = p.alias_of[k], source[k]
        until_s[at] = max(until_s[at], until_s[k, source[k]])
    tensor, device = np.nonzero(np.isfinite(from_s))
    lives = from_s[tensor, device], until_s[tensor, device]
    held = np.where(device == source[tensor], home_bytes(p)[tensor], p.tensor_bytes[tensor])
    return device, *lives, np.ceil(held)


def _curve(
    track: int,
    resident: float,
    from_s: FloatArray,
    until_s: FloatArray,
    held: FloatArray,
    capacity: float,
) -> MemoryCurve:
    """Sum of half-open intervals, one entry per time at which it changes."""
    times = np.concatenate([[0.0], from_s, until_s])
    change = np.concatenate([[resident], held, -held])
    at, inverse = np.unique(times, return_inverse=True)
    level = np.cumsum(np.bincount(inverse, change, minlength=len(at)), dtype=np.float64)
    return MemoryCurve(track, at, level, float(capacity))
