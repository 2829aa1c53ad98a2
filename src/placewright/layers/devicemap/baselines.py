"""Device maps that others make, to be judged beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.layers.devicemap.judge import judge
from placewright.layers.devicemap.problem import LayerRange, MapPlan, MapProblem
from placewright.planning.contract import Context, TakesEveryProblem


def baselines(problem: MapProblem) -> dict[str, MapPlan]:
    """Plans by the name of their rule; whether they fit is the judge's to say."""
    found = {name: rule(problem) for name, rule in RULES.items()}
    return {name: plan for name, plan in found.items() if plan is not None}


@final
@dataclass(frozen=True, slots=True)
class Rule(TakesEveryProblem):
    """A planner that follows one of `RULES`."""

    name: str

    def __call__(self, problem: MapProblem, context: Context) -> MapPlan:
        """The plan of the rule.

        Raises `InfeasibleError`: it gives no plan.
        """
        plan = RULES[self.name](problem)
        if plan is None:
            by, hint = f"the rule {self.name}", "name another planner"
            raise InfeasibleError("places no layers", where=problem.name, by=by, hint=hint)
        return plan


def _accelerators(problem: MapProblem) -> list[int]:
    return [d for d, x in enumerate(problem.cluster.devices) if x.kind != "cpu"]


def _accelerate_auto(problem: MapProblem) -> MapPlan | None:
    """``device_map="auto"`` of accelerate 1.15 for whole blocks.

    GPUs, then the CPU of the first node are filled in order by bytes of weights, all GPUs but the
    last up to an even share and a quarter more than a block; what is left over goes to the last.
    """
    return _accelerate(problem, _accelerators(problem))


def _memory_proportional(problem: MapProblem) -> MapPlan | None:
    """A ring by falling memory, layers in proportion to it (exo, for blocks)."""
    memory = problem.capacity
    order = sorted(range(problem.m), key=lambda d: (-float(memory[d]), d))
    finite = np.minimum(memory, float(problem.weights.sum() + problem.cache.sum()))
    return _cut(problem, order, [float(finite[d]) for d in order])


def _equal_layers(problem: MapProblem) -> MapPlan | None:
    """As many blocks on each GPU (on each device where there are none), in order (vLLM)."""
    devices = _accelerators(problem) or list(range(problem.m))
    return _cut(problem, devices, [1.0] * len(devices))


def _best_single(problem: MapProblem) -> MapPlan | None:
    """All layers on the device that is best alone; where none holds them, on the largest."""
    alone = [judge(problem, MapPlan((LayerRange(d, 0, problem.n),))) for d in range(problem.m)]
    return min(alone, key=lambda each: (each.violation_size, each.value)).plan


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
    """Devices by falling speed are filled, caches included."""
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


RULES: Mapping[str, Callable[[MapProblem], MapPlan | None]] = {
    "accelerate-auto": _accelerate_auto,
    "memory-proportional": _memory_proportional,
    "equal-layers": _equal_layers,
    "fastest-first": _fastest_first,
    "best-single": _best_single,
}
"""What others do, by name."""
