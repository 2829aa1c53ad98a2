"""Measured costs: the whole step is executed here, every operator is timed where it stands.

This is the reference: the medians add up to the step within a few per cent, because caches,
allocator and memory are in the state that the step leaves them in.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from placewright.arrays import FloatArray
from placewright.cluster.cluster import Cluster, Device
from placewright.execute.session import Session
from placewright.execute.step_record import operator_seconds
from placewright.graph.graph import Graph

MOST_STEPS = 56
"""Of a step so short that the time would not end them."""


def in_place_seconds(
    graph: Graph,
    state: Mapping[str, torch.Tensor],
    *,
    cores: int = 1,
    gpu: int | None = None,
    steps: int = 7,
    seconds: float = 2.5,
    warmup: int = 2,
) -> FloatArray:
    """Median seconds of each operator on `cores` threads of this machine, or on one of its GPUs.

    Parameters
    ----------
    state
        Real tensors for the program inputs (see `placewright.capture.state`).
    gpu
        Number of the GPU.
    steps, seconds
        So many steps at least, and more of them until so much time is spent: what else a machine
        does comes in bursts, which the median of a short step's few would take for its cost.

    Returns
    -------
    Shape (operators,).
    """
    devices = [Device("here", cores=cores)]
    if gpu is not None:
        devices = [Device(f"gpu {k}", kind="gpu") for k in range(gpu + 1)]
    everything = range(len(graph.operators))
    with Session(graph, Cluster(tuple(devices), name="profiling"), state) as session:
        session.load([len(devices) - 1] * len(graph.operators), everything)
        session.run(warmup)
        records = session.run(steps, watched=True)
        while sum(record.duration_s for record in records) < seconds and len(records) < MOST_STEPS:
            records += session.run(steps, watched=True)
        return operator_seconds(records, len(graph.operators))
