"""What the judge of wing 1 answers: what a plan is worth, and how it plays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.memory import memory_curves, resident_curves
from placewright.operators.problem import Communication, OperatorProblem
from placewright.planning.trace import MemoryCurve, Trace

HOST = -1
"""Source or target of a transfer: host memory, through which devices around it reach each other."""
HOST_NAME = "host memory"


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """What was sent, by start time; one entry per tensor and receiving device.

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
    """What a plan is worth, and how it plays.

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
            return resident_curves(p, self.peak_bytes)
        ends = self.op_start_s, self.op_end_s
        return memory_curves(p, self.placement, ends, (moves.tensor, moves.target, moves.end_s))


def link_tracks(problem: OperatorProblem, moves: Transfers) -> tuple[tuple[str, ...], IntArray]:
    """Names of channels, or of devices' ways to host memory, and which carries each transfer."""
    if problem.communication is not Communication.STAR:
        return problem.channel_names, problem.channel[moves.source, moves.target]
    ways = tuple(f"{name} <-> {HOST_NAME}" for name in problem.device_names)
    return ways, np.where(moves.source == HOST, moves.target, moves.source)


def end_name(problem: OperatorProblem, device: int) -> str:
    """Where a transfer starts or ends, in words."""
    return HOST_NAME if device == HOST else problem.device_names[device]


def violation_words(problem: OperatorProblem, over: IntArray) -> str:
    """The worst device in words."""
    if not over.any():
        return ""
    worst = int(over.argmax())
    return f"{problem.device_names[worst]!r} needs {int(over[worst])} bytes more than it has"
