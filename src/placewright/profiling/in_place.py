"""Measured costs: the whole step is executed here, every operator is timed where it stands.

This is the reference: caches, allocator and memory are in the state that the step leaves them in.
What the executor does between two operators belongs to the first of them. Steps that are watched
and steps that are not take turns, each ordered by itself as in a measured run; the median of those
that are not is what all operators together take: it knows nothing of clocks that are read in
between, and all of the bursts that medians of single operators leave out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from placewright.cluster.cluster import Cluster, Device
from placewright.graph.graph import Graph
from placewright.numerics.arrays import FloatArray
from placewright.runtime.session import Session
from placewright.runtime.step_record import StepRecord, occupied_seconds, operator_seconds

LEAST_STEPS, MOST_STEPS = 5, 60
"""Of each kind: at least, and of a step so short that the time would not end them."""


def in_place_seconds(
    graph: Graph,
    state: Mapping[str, torch.Tensor],
    *,
    cores: int = 1,
    gpu: int | None = None,
    steps: int = LEAST_STEPS,
    seconds: float = 2.5,
    warmup: int = 2,
) -> FloatArray:
    """Median seconds of each operator on `cores` threads of this machine, or on one of its GPUs.

    Parameters
    ----------
    state
        Real tensors for the program inputs (see `placewright.capturing.state`).
    gpu
        Number of the GPU.
    steps, seconds
        So many steps of each kind at least, and more of them until so much time is spent: what else
        a machine does comes in bursts, which the median of a short step's few would take for its
        cost.

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
        watched: list[StepRecord] = []
        plain_s: list[float] = []
        while len(plain_s) < steps or (sum(plain_s) < seconds / 2 and len(plain_s) < MOST_STEPS):
            watched += session.run(1, watched=True)
            plain_s.append(session.run(1)[0].duration_s)
    count = len(graph.operators)
    found = (occupied_seconds if gpu is None else operator_seconds)(watched, count)
    return found if gpu is not None else as_long_as(found, float(np.median(plain_s)))


def as_long_as(seconds: FloatArray, step_s: float) -> FloatArray:
    """The operators' seconds in proportion, all of them together as long as a step."""
    whole_s = float(seconds.sum())
    return seconds * (step_s / whole_s) if whole_s > 0 else seconds
