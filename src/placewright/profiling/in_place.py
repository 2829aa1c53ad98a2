"""Costs measured in place: the whole step is executed here, with a timer at every operator.

This is the reference: caches, allocator and memory are in the state that the step leaves them in.
The executor's time between two operators belongs to the first of them. Steps with timers alternate
with steps without, each started by itself as in a measured run. Operators add up to the median step
without timers: it excludes the cost of reading clocks, and includes the bursts of background load
that medians of single operators leave out. On a CPU they are scaled. On a GPU a mark is one more
launch, as long for a short operator as for a long one: the same time is taken off each.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placewright.cluster.cluster import Cluster, Device
from placewright.graph.graph import Graph
from placewright.io.tensor_files import AnyTensor
from placewright.numerics.arrays import FloatArray
from placewright.runtime.session import Session
from placewright.runtime.step_record import StepRecord, occupied_seconds

LEAST_STEPS, MOST_STEPS = 5, 60
"""Steps with timers, and as many without: at least, and at most, however short they are."""

LEAST_KEPT = 0.1
"""Part of a GPU operator's time that is never taken for the cost of a mark."""


def in_place_seconds(
    graph: Graph,
    state: Mapping[str, AnyTensor],
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
        At least so many steps of each kind, and more until so much time is spent: background load
        comes in bursts, which the median of few short steps would count as their cost.

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
        timed: list[StepRecord] = []
        plain_s: list[float] = []
        # A host that has just woken up keeps a GPU waiting: there the first step does not count.
        first = 0 if gpu is None else 1
        while len(plain_s) < steps or (sum(plain_s) < seconds / 2 and len(plain_s) < MOST_STEPS):
            timed += session.run(first + 1, watched=True)[first:]
            plain_s.append(session.run(first + 1)[first].duration_s)
    found = occupied_seconds(timed, len(graph.operators))
    adjusted = scaled_to_step if gpu is None else without_marks
    return adjusted(found, float(np.median(plain_s)))


def scaled_to_step(seconds: FloatArray, step_s: float) -> FloatArray:
    """The operators' seconds, scaled so that they add up to a step."""
    whole_s = float(seconds.sum())
    return seconds * (step_s / whole_s) if whole_s > 0 else seconds


def without_marks(seconds: FloatArray, step_s: float) -> FloatArray:
    """The operators' seconds less the same time each, so that they add up to a step.

    None loses more than 1 - `LEAST_KEPT` of its time. Where they add up to less than the step, or
    would to more in spite of that, they are scaled.
    """
    least = LEAST_KEPT * seconds
    low, high = 0.0, float(seconds.max(initial=0.0))
    if not least.sum() < step_s < seconds.sum():
        return scaled_to_step(seconds, step_s)
    while (mark_s := (low + high) / 2) not in (low, high):
        above = np.maximum(seconds - mark_s, least).sum() > step_s
        low, high = (mark_s, high) if above else (low, mark_s)
    return scaled_to_step(np.maximum(seconds - mark_s, least), step_s)
