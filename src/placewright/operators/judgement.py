"""Judgement of a plan of wing 1: value, schedule, transfers, memory, and their trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.problem import Communication, OperatorProblem
from placewright.operators.sizes import home_bytes, views
from placewright.report.text import size
from placewright.report.trace import MemoryCurve, Trace

HOST = -1
"""Source or target of a transfer through host memory."""
HOST_NAME = "host memory"


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Transfers by start time; one entry per tensor and receiving device.

    Attributes
    ----------
    tensor, source, target
        Indices into the problem's tensors and devices; `HOST` for host memory.
    start_s, end_s
        When the channel was held.
    """

    tensor: IntArray
    source: IntArray
    target: IntArray
    start_s: FloatArray
    end_s: FloatArray

    def __len__(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True, slots=True, eq=False)
class OperatorJudgement:
    """Value of a plan, and its simulation.

    Attributes
    ----------
    value
        Seconds; lower is better.
    feasible
        Whether every device's peak fits its memory.
    violation
        The worst device and its bytes over, empty if feasible.
    violation_bytes
        Bytes over, summed over devices.
    op_start_s, op_end_s
        Shape (n,).
    peak_bytes
        Shape (m,), int64.
    busy_s
        Shape (m,), seconds of compute.
    """

    problem: OperatorProblem
    placement: IntArray
    value: float
    feasible: bool
    violation: str
    violation_bytes: int
    op_start_s: FloatArray
    op_end_s: FloatArray
    transfers: Transfers
    peak_bytes: IntArray
    busy_s: FloatArray

    @property
    def violation_size(self) -> float:
        """Bytes over."""
        return float(self.violation_bytes)

    @property
    def metrics(self) -> dict[str, tuple[float, str]]:
        """One sample through all operators, the fullest device, and what is sent."""
        return {
            "makespan": (self.makespan_s, "s"),
            "largest peak": (float(self.peak_bytes.max()), "bytes"),
            "busiest device": (float(self.busy_s.max()), "s"),
            "transfers": (float(len(self.transfers)), ""),
        }

    @property
    def makespan_s(self) -> float:
        """End of the last operator of one sample; equals `value` for latency."""
        return float(self.op_end_s.max())

    def trace(self) -> Trace:
        """Spans on devices and channels, and memory over time."""
        p, moves = self.problem, self.transfers
        links, track = link_tracks(p, moves)
        return Trace(
            tracks=(*p.device_names, *links),
            devices=p.m,
            labels=(*p.operator_names, *p.tensor_names),
            track=np.concatenate([self.placement, p.m + track]),
            label=np.concatenate([np.arange(p.n), p.n + moves.tensor]),
            start_s=np.concatenate([self.op_start_s, moves.start_s]),
            end_s=np.concatenate([self.op_end_s, moves.end_s]),
            memory=self._memory(),
            title=f"{p.name}, predicted",
        )

    def _memory(self) -> tuple[MemoryCurve, ...]:
        p, moves = self.problem, self.transfers
        if p.communication is Communication.STAR:
            return _resident_curves(p, self.peak_bytes)
        ends = self.op_start_s, self.op_end_s
        return _memory_curves(p, self.placement, ends, (moves.tensor, moves.target, moves.end_s))


def link_tracks(problem: OperatorProblem, moves: Transfers) -> tuple[tuple[str, ...], IntArray]:
    """Names of channels, or of devices' ways to host memory, and which carries each transfer."""
    if problem.communication is not Communication.STAR:
        return problem.channel_names, problem.channel[moves.source, moves.target]
    ways = tuple(f"{name} <-> {HOST_NAME}" for name in problem.device_names)
    return ways, np.where(moves.source == HOST, moves.target, moves.source)


def end_name(problem: OperatorProblem, device: int) -> str:
    """Name of the source or target of a transfer."""
    return HOST_NAME if device == HOST else problem.device_names[device]


def violation_words(problem: OperatorProblem, over: IntArray) -> str:
    """Text that names the worst device."""
    if not over.any():
        return ""
    worst = int(over.argmax())
    return f"{problem.device_names[worst]!r} needs {size(float(over[worst]))} more than it has"


def _memory_curves(
    problem: OperatorProblem,
    placement: IntArray,
    ends: tuple[FloatArray, FloatArray],
    moves: tuple[IntArray, IntArray, FloatArray],
) -> tuple[MemoryCurve, ...]:
    """One curve per device.

    `ends`: start and end seconds of every operator.
    `moves`: tensor, target and end seconds of every transfer.
    """
    device, from_s, until_s, held = _lives(problem, placement, ends, moves)
    resident = np.bincount(placement, np.ceil(problem.resident_bytes), minlength=problem.m)
    return tuple(
        _curve(d, resident[d], from_s[at], until_s[at], held[at], problem.memory_bytes[d])
        for d in range(problem.m)
        for at in [np.flatnonzero(device == d)]
    )


def _resident_curves(problem: OperatorProblem, resident_bytes: IntArray) -> tuple[MemoryCurve, ...]:
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
    read = p.consumed
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
    # Changes at one time make one entry: no level that lasts for no time is drawn (rule M4).
    at, inverse = np.unique(times, return_inverse=True)
    level = np.cumsum(np.bincount(inverse, change, minlength=len(at)), dtype=np.float64)
    return MemoryCurve(track, at, level, float(capacity))
