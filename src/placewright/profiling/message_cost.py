"""MessageCost: what a message between two workers costs beside its link, and its measurement.

A tensor that changes its device is wrapped, sent, received by a thread of the transport, and waited
for by a worker whose caches have cooled down meanwhile. Measured end to end, from the end of the
operator that makes it to the end of the one that takes it, less what that operator takes where
nothing is waited for: once per machine, on two workers, over a link that is emulated and over one
that is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import WorkerError
from placewright.graph.graph import (
    Graph,
    Instruction,
    Operator,
    Program,
    ProgramInput,
    Ref,
    Tensor,
    TensorSpec,
)
from placewright.numerics.arrays import FloatArray
from placewright.profiling.profile_warnings import MessagesNotMeasuredWarning

if TYPE_CHECKING:  # kept costs are used where PyTorch is not installed
    import torch

    from placewright.runtime.step_record import StepRecord

KEY = "messages between workers"
"""Of message costs in a kept profile."""


@dataclass(frozen=True, slots=True)
class MessageCost:
    """Seconds and seconds per byte of a message.

    Attributes
    ----------
    real_s, real_s_per_byte
        The whole time over a link that is not emulated: through this machine's memory.
    extra_s, extra_s_per_byte
        The time beyond an emulated link's own.
    """

    real_s: float
    real_s_per_byte: float
    extra_s: float
    extra_s_per_byte: float

    @classmethod
    def of(cls, kept: Mapping[str, float]) -> MessageCost | None:
        """Read the entries of a kept profile; ``None`` where a number is missing."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: kept[n] for n in names}) if kept.keys() >= set(names) else None

    def as_entries(self) -> dict[str, float]:
        """The entries of a kept profile."""
        return asdict(self)

    def line(self, latency_s: float, s_per_byte: float, *, given: bool) -> tuple[float, float]:
        """Latency and seconds per byte of a link as the executor delivers over it.

        A link that the cluster does not give is this machine's memory, and costs what was measured;
        one that is `given` costs its own time and what the executor adds, and no less than this
        machine needs.
        """
        if not given:
            return self.real_s, self.real_s_per_byte
        return (
            max(latency_s + self.extra_s, self.real_s),
            max(s_per_byte + self.extra_s_per_byte, self.real_s_per_byte),
        )


def warn_of_messages(what: str, error: WorkerError) -> None:
    """Warn that messages are assumed to cost nothing beside their links."""
    warnings.warn(
        f"messages of {what} cost what its links say: two workers could not measure more "
        f"({error.what})\n  next: see that processes of this machine can connect to each other",
        MessagesNotMeasuredWarning,
        stacklevel=5,
    )


SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18)
"""Bytes."""

HOPS = 6
"""Of each size, back and forth; an odd number of operators is on the first device."""

STEPS = 8

EMULATED = Link("a", "b", bandwidth=125e6, latency_s=2e-4)
"""Ethernet of single-board computers."""


def measured_messages() -> MessageCost:
    """Measure on two workers of this machine, in a second or less."""
    from placewright.runtime.session import Session

    devices = (Device("a", node="a"), Device("b", node="b"))
    graph, state = copy_chains(SIZES, HOPS + 1)
    turns = [k % 2 for _ in SIZES for k in range(HOPS + 1)]
    order = range(len(turns))
    with Session(graph, Cluster(devices, (EMULATED,), name="messages"), state) as session:
        session.load([0] * len(turns), order)
        session.run(2)
        alone = session.run(STEPS, watched=True)
        session.load(turns, order)
        session.run(2)
        apart = session.run(STEPS, watched=True)
    return fitted(hop_seconds(apart, alone))


def hop_seconds(apart: list[StepRecord], alone: list[StepRecord]) -> FloatArray:
    """Median seconds of a hop, shape (2, sizes): over the emulated link, and back over the other.

    `apart` are timed steps with the operators alternating between two devices, `alone` on one.
    """
    alone_s = np.median([ended - began for began, ended in map(_times, alone)], axis=0)
    ends = np.array([_times(record)[1] for record in apart])
    shape = (len(apart), len(SIZES), HOPS + 1)
    taken = np.diff(ends.reshape(shape), axis=2) - alone_s.reshape(shape[1:])[None, :, 1:]
    rows = [np.median(taken[:, :, first::2], axis=(0, 2)) for first in (0, 1)]
    found: FloatArray = np.stack(rows)
    return found


def fitted(hops_s: FloatArray) -> MessageCost:
    """Fit a line to each row of `hop_seconds`, with the least relative squared error."""
    sizes = np.array(SIZES, dtype=np.float64)
    own_s = EMULATED.latency_s + sizes / EMULATED.bandwidth
    extra_s, extra_per_byte = _line(sizes, hops_s[0] - own_s, hops_s[0])
    real_s, real_per_byte = _line(sizes, hops_s[1], hops_s[1])
    return MessageCost(real_s, real_per_byte, extra_s, extra_per_byte)


def _line(sizes: FloatArray, seconds: FloatArray, whole_s: FloatArray) -> tuple[float, float]:
    """Non-negative latency and slope; errors count relative to the whole message's time."""
    weights = 1.0 / np.maximum(whole_s, 1e-6)
    columns = np.stack([np.ones(len(sizes)), sizes], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns * weights[:, None], seconds * weights)
    if slope < 0:
        return max(0.0, float(np.average(seconds, weights=weights**2))), 0.0
    if latency < 0:
        return 0.0, max(
            0.0, float((weights**2 * sizes * seconds).sum() / (weights**2 * sizes**2).sum())
        )
    return float(latency), float(slope)


def _times(record: StepRecord) -> tuple[FloatArray, FloatArray]:
    """When each operator began and ended, by position in the graph."""
    began, ended = np.empty(len(SIZES) * (HOPS + 1)), np.empty(len(SIZES) * (HOPS + 1))
    for log in record.logs:
        spans = np.asarray(log.spans_s).reshape(-1, 2)
        began[list(log.operators)], ended[list(log.operators)] = spans[:, 0], spans[:, 1]
    return began, ended


def copy_chains(
    sizes: Sequence[int], length: int, dtype: str = "uint8"
) -> tuple[Graph, dict[str, torch.Tensor]]:
    """For each number of elements a chain of `length` copies, and the tensors it starts from."""
    import torch

    operators, tensors, inputs, instructions, state = [], [], [], [], {}
    kind = "aten.clone.default"
    for size in sizes:
        spec, start = TensorSpec((size,), dtype, (1,)), f"x{size}"
        names = [f"copy{k} of {size}" for k in range(length)]
        inputs.append(ProgramInput(start, "constant", start, spec))
        state[start] = torch.ones(size, dtype=getattr(torch, dtype))
        bytes_ = size * state[start].element_size()
        for source, name in pairwise((start, *names)):
            operators.append(Operator(name, kind, outputs=(spec,)))
            instructions.append(Instruction(name, kind, (Ref(source),), {}, (name,)))
        tensors += [Tensor(a, a, bytes_, (b,)) for a, b in pairwise(names)]
    program = Program(tuple(inputs), tuple(instructions), ())
    return Graph("copies", tuple(operators), tuple(tensors), program), state
