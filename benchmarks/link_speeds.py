"""Fit the latency and the seconds per byte of links to measured messages.

A straight line through the medians over message sizes from 1 KB to 16 MB, least squares on
relative errors, so that small messages weigh as much as large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from placewright.cluster.cluster import Cluster, Device, Link
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
from placewright.runtime.session import Session

SIZES = (1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""Bytes."""


@dataclass(frozen=True, slots=True)
class LinkFit:
    """``latency_s + bytes * seconds_per_byte``, and the largest relative error of the fit."""

    latency_s: float
    seconds_per_byte: float
    worst_error: float


def fit_line(sizes: Sequence[int], seconds: FloatArray) -> LinkFit:
    """The line through (bytes, seconds) with the least relative squared error."""
    columns = np.stack([np.ones(len(sizes)), np.asarray(sizes, dtype=np.float64)], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(
        columns / seconds[:, None], np.ones(len(sizes)), rcond=None
    )
    latency, per_byte = max(0.0, float(latency)), max(1e-15, float(per_byte))
    predicted = latency + per_byte * columns[:, 1]
    return LinkFit(latency, per_byte, float(np.abs(predicted / seconds - 1).max()))


def measure_links(cluster: Cluster, *, steps: int = 15) -> Cluster:
    """The same cluster with every link's latency and bandwidth as measured on this machine.

    Links that the engine emulates are measured as emulated. One direction of one pair stands
    for all links between devices of the same kinds that ask for the same latency and bandwidth.
    """
    fits: dict[tuple[object, ...], LinkFit] = {}
    links = []
    for link in (*cluster.links, *cluster.local_links()):
        kinds = tuple(cluster.devices[cluster.index(n)].kind for n in (link.source, link.target))
        key = (link.latency_s, link.bandwidth, kinds)
        if key not in fits:
            shaped = link in cluster.links
            fits[key] = fit_link(link, shaped=shaped, kinds=kinds, steps=steps)
        fit = fits[key]
        links.append(replace(link, latency_s=fit.latency_s, bandwidth=1.0 / fit.seconds_per_byte))
    return replace(cluster, links=tuple(links))


def fit_link(
    link: Link, *, shaped: bool, kinds: Sequence[str] = ("cpu", "cpu"), steps: int = 15
) -> LinkFit:
    """Send tensors of all `SIZES` between two devices of these kinds and fit a line."""
    return fit_line(SIZES, time_messages(link, shaped=shaped, kinds=kinds, steps=steps))


def time_messages(
    link: Link, *, shaped: bool, kinds: Sequence[str] = ("cpu", "cpu"), steps: int = 15
) -> FloatArray:
    """Median seconds of one message of each of `SIZES` between two devices of these kinds."""
    source, target = kinds
    devices = (
        Device("a", kind=source, node="a"),
        Device("b", kind=target, node="b" if shaped and {source, target} == {"cpu"} else "a"),
    )
    ends = replace(link, source="a", target="b", channel="a->b")
    pair = Cluster(devices, (ends,) if shaped else (), name="link")
    graph, state = _messages()
    placement = [0, 1] * len(SIZES)
    with Session(graph, pair, state) as session:
        session.load(placement, range(len(placement)))
        session.run(2)
        records = session.run(steps, watched=True)
    times = np.array([[t[3] - t[2] for t in sorted(r.logs[0].transfers)] for r in records])
    medians: FloatArray = np.median(times, axis=0)
    return medians


def _messages() -> tuple[Graph, dict[str, torch.Tensor]]:
    """A graph that copies one tensor of each size and sends it to another device."""
    operators, tensors, inputs, instructions, state = [], [], [], [], {}
    for size in SIZES:
        spec = TensorSpec((size,), "uint8", (1,))
        x, sent, got = f"x{size}", f"send{size}", f"take{size}"
        inputs.append(ProgramInput(x, "constant", x, spec))
        state[x] = torch.ones(size, dtype=torch.uint8)
        for name, source, result in ((sent, x, spec), (got, sent, TensorSpec((1,), "uint8", (1,)))):
            args = (Ref(source),) if name == sent else (Ref(source), 0, 0, 1)
            target = "aten.clone.default" if name == sent else "aten.slice.Tensor"
            operators.append(Operator(name, target, outputs=(result,)))
            instructions.append(Instruction(name, target, args, {}, (name,)))
        tensors.append(Tensor(sent, sent, size, (got,)))
    program = Program(tuple(inputs), tuple(instructions), ())
    return Graph("link", tuple(operators), tuple(tensors), program), state
