"""Device maps that others make, to be judged beside ours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.layers.devicemap.plan import LayerRange, MapPlan
from placewright.layers.devicemap.problem import MapProblem


def baselines(problem: MapProblem) -> dict[str, MapPlan]:
    """Plans by name; whether they fit is the judge's to say.

    ``accelerate-auto``: ``device_map="auto"`` of accelerate 1.15 for whole blocks: GPUs, then
    the CPU of the first node are filled in order by bytes of weights, all GPUs but the last up
    to an even share and a quarter more than a block; what is left over goes to the last one.
    ``memory-proportional``: a ring by falling memory, layers in proportion to it (exo, for blocks).
    ``equal-layers``: as many blocks on each GPU (on each device where there are none), in order
    (vLLM). ``fastest-first``: devices by falling speed are filled, caches included.
    """
    accelerators = [d for d, x in enumerate(problem.cluster.devices) if x.kind != "cpu"]
    every = list(range(problem.m))
    main = accelerators or every
    found = {
        "accelerate-auto": _accelerate(problem, accelerators),
        "memory-proportional": _proportional(problem, every),
        "equal-layers": _cut(problem, main, [1.0] * len(main)),
        "fastest-first": _fastest_first(problem),
    }
    return {name: plan for name, plan in found.items() if plan is not None}


def _accelerate(problem: MapProblem, accelerators: Sequence[int]) -> MapPlan | None:
    devices = problem.cluster.devices
    cpus = [d for d, x in enumerate(devices) if x.kind == "cpu"][:1]
    total = float((problem.weights - problem.shared).sum())
    largest = float(problem.weights[list(problem.model.blocks)].max(initial=0.0))
    room = problem.capacity.copy()
    if len(accelerators) > 1:
        even = total / len(accelerators) + 1.25 * largest
        for d in accelerators[:-1]:
            room[d] = min(room[d], even)
    order = [*accelerators, *cpus]
    for d in (*accelerators[:1], *cpus):  # room to bring in a layer from elsewhere
        if len(order) > 1:
            room[d] -= float(problem.weights.max())
    return _fill(problem, order, room, caches=False)


def _fastest_first(problem: MapProblem) -> MapPlan | None:
    speed = problem.decode_s(1).sum(axis=1)
    order = sorted(range(problem.m), key=lambda d: (float(speed[d]), d))
    room = problem.capacity - problem.workspace.max()
    return _fill(problem, order, room, caches=True)


def _fill(
    problem: MapProblem, order: Sequence[int], room: Sequence[float] | object, *, caches: bool
) -> MapPlan | None:
    """Devices one after another, as many layers as fit; the last one takes what is left."""
    rooms = np.asarray(room, dtype=np.float64)
    need = problem.weights - problem.shared + (problem.cache if caches else 0.0)
    ranges, start = [], 0
    for place, d in enumerate(order):
        end, held = start, 0.0
        last = place == len(order) - 1
        while end < problem.n and (last or held + need[end] <= rooms[d]):
            held += float(need[end])
            end += 1
        if end > start:
            ranges.append(LayerRange(d, start, end))
        start = end
    return MapPlan(tuple(ranges)) if start == problem.n and ranges else None


def _proportional(problem: MapProblem, devices: Sequence[int]) -> MapPlan:
    memory = problem.capacity
    order = sorted(devices, key=lambda d: (-float(memory[d]), d))
    finite = np.minimum(memory, float(problem.weights.sum() + problem.cache.sum()))
    return _cut(problem, order, [float(finite[d]) for d in order])


def _cut(problem: MapProblem, order: Sequence[int], shares: Sequence[float]) -> MapPlan:
    """Blocks in proportion to `shares`, what comes before and after them at the ends."""
    blocks = problem.model.blocks or tuple(range(problem.n))
    ends = np.rint(np.cumsum(shares) / sum(shares) * len(blocks)).astype(int).tolist()
    ranges, start = [], 0
    for d, end in zip(order, ends, strict=True):
        stop = problem.n if end == len(blocks) else blocks[end]
        stop = problem.n if d == order[-1] else stop
        if end and stop > start:
            ranges.append(LayerRange(d, start, stop))
            start = stop
    return MapPlan(tuple(ranges))
