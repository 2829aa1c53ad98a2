"""Exact for throughput on a topological order: stages, replicas, tensor degrees, variants.

Every finite load of a stage is a candidate for the largest one; the smallest candidate with which
all layers can be covered is found by bisection. Whether one is enough: the least number of devices
that hold the layers from i on with s replicas in all, a dynamic programme over (i, s), as memory
depends on the replicas of the stage and of those behind it (Tarnawski et al., NeurIPS 2021, arXiv
2106.11731). O(n^2 t d s) per candidate.

Departures: stages are intervals of one topological order instead of differences of downsets. A
stage's variants are chosen by the ratio of time to memory, improved by the best single exchange.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.layers.bounds import bounds
from placewright.layers.loads import costs_of
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.planners._load_kernels import (
    LoadInstance,
    cover,
    interval_costs,
    knapsack,
    stage_loads,
)
from placewright.layers.problem import LayerProblem
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Context
from placewright.report.text import size

NEAR = (1.05, 1.25, 2.0, 4.0)
"""Multiples of the bound that are tried as largest loads before bisection."""

MOST_ENTRIES = 10**9
"""Of the table of loads: 8 GB."""


def instance_of(p: LayerProblem) -> LoadInstance:
    """The problem as the kernels read it."""
    v, most = costs_of(p), most_replicas(p)
    replicas = np.array([d for d in range(1, most + 1) if v.batch_samples % d == 0], dtype=np.int64)
    return LoadInstance(
        np.array(p.edge_source),  # copies: kernels are compiled for arrays that can be written
        np.array(p.edge_target),
        np.array(p.edge_bytes),
        np.array(v.sync_in_bytes),
        np.array(v.sync_out_bytes),
        np.array(v.time_s),
        np.array(v.parameter_bytes),
        np.array(v.in_flight_bytes),
        np.array(v.fixed_bytes),
        degrees=np.array(p.degrees, dtype=np.int64),
        replicas=replicas,
        start=np.concatenate([[0], np.cumsum(most // replicas + 2)]).astype(np.int64),
        devices=p.w,
        most=most,
        batch=float(v.batch_samples),
        bandwidth=float(v.bandwidth),
        room=float(p.memory_bytes.min()),
    )


def most_replicas(p: LayerProblem) -> int:
    """Of all stages together."""
    return min(costs_of(p).batch_samples, p.w)


def table_entries(p: LayerProblem) -> int:
    """Entries of the table of loads."""
    most, batch = most_replicas(p), costs_of(p).batch_samples
    in_flight = sum(most // d + 2 for d in range(1, most + 1) if batch % d == 0)
    return (p.n * (p.n + 1) + 1) * len(p.degrees) * in_flight


def covers(given: LoadInstance, load: FloatArray, limit: float) -> bool:
    """Whether stages of at most this load hold all layers."""
    devices, _ = cover(given, load, limit)
    return bool((devices[0] <= given.devices).any())


@final
@dataclass(frozen=True, slots=True)
class LoadDp:
    """The module's dynamic programme; `dp` on problems of throughput."""

    name: ClassVar[str] = "dp"

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where layers have more than two variants, or there are too many of them for the table."""
        if problem.variants is None:
            return "plans throughput, not steps"
        if len(problem.variants.names) > 2:
            return "takes two variants of a layer"
        entries = table_entries(problem)
        if entries > MOST_ENTRIES:
            return (
                f"its table of loads would have {entries:.2g} entries, at most {MOST_ENTRIES:.2g}"
            )
        return None

    def __call__(self, problem: LayerProblem, context: Context) -> LayerPlan:
        """The plan; raises `InfeasibleError` with the smallest shortfall."""
        return best_plan(problem, context.deadline_s)


def best_plan(p: LayerProblem, deadline_s: float = np.inf) -> LayerPlan:
    """The least largest load."""
    given = instance_of(p)
    load = stage_loads(given)
    values = np.unique(load[np.isfinite(load)])
    # The answer is among ``values[low : high + 1]``; whether a limit is enough grows with it.
    low, high, least = 0, len(values) - 1, bounds(p)["load"]
    for factor in NEAR:  # most answers are near the bound, and time may end the bisection
        at = int(np.searchsorted(values, factor * least, side="right")) - 1
        if low <= at < high:
            if covers(given, load, values[at]):
                high = at
                break
            low = at + 1
    else:
        if len(values) == 0 or not covers(given, load, values[-1]):
            raise _no_room(p, given, deadline_s)
    while low < high:
        middle = (low + high) // 2
        if covers(given, load, values[middle]):
            high = middle
        else:
            low = middle + 1
        if time.perf_counter() > deadline_s:
            break
    # `high` is always enough, also where time has ended the bisection.
    return _plan(given, *cover(given, load, values[high]))


def _plan(given: LoadInstance, devices: FloatArray, choice: IntArray) -> LayerPlan:
    """Read the stages and the variants out of the choices."""
    n, s, i, used = len(choice), int(np.argmin(devices[0])), 0, 0
    stages: list[Stage] = []
    variants = np.zeros(n, dtype=np.int64)
    while i < n:
        j, t, k = choice[i, s].tolist()
        d, degree = int(given.replicas[k]), int(given.degrees[t])
        workers = [
            Replica(tuple(range(used + r * degree, used + (r + 1) * degree)), 1) for r in range(d)
        ]
        variants[i:j] = chosen_variants(given, i, j, t, d, -(-s // d))
        stages.append(Stage(i, j - 1, tuple(workers), degree))
        i, s, used = j, s - d, used + d * degree
    return LayerPlan(tuple(stages), variants=tuple(variants.tolist()))


def chosen_variants(given: LoadInstance, i: int, j: int, t: int, d: int, flight: int) -> IntArray:
    """Variants of the layers of a stage, as the table has them."""
    cost = interval_costs(given, i, j, t, d)
    memory = given.fixed[i:j, t] + flight * given.in_flight[i:j, t]
    pick = np.zeros(j - i, dtype=np.int64)
    knapsack(cost, memory, given.room, pick)
    return pick


def _no_room(p: LayerProblem, given: LoadInstance, deadline_s: float) -> InfeasibleError:
    """Which device misses least memory, in the plan with the smallest stages."""
    room = given.room
    needs = (given.fixed + given.in_flight).min(axis=(1, 2))
    layer = int(needs.argmax())
    over = float(needs[layer]) - room
    total = float(needs.sum()) - room * p.w
    if over > 0:
        by = f"layer {p.layer_names[layer]!r} alone needs {size(over)} more on {p.worker_names[0]}"
    elif total > 0:
        by = f"all layers need {size(total)} more than all devices have, {p.worker_names[0]} too"
    elif math.isinf(least := _least_room(given, deadline_s)):
        by = f"no stages on {p.w} devices have costs for all layers, whatever the memory"
    else:
        more = least - room
        by = f"the cut that needs least memory needs {size(more)} more on {p.worker_names[0]}"
    return InfeasibleError("the layers fit in no strategy", where=p.name, by=by)


def _least_room(given: LoadInstance, deadline_s: float) -> float:
    """Least bytes on every device with which a plan fits, to 2 % if time lasts; ``inf``: none."""

    def fits(room: float) -> bool:
        other = given._replace(room=room)
        return covers(other, stage_loads(other), sys.float_info.max)

    if not fits(sys.float_info.max):
        return math.inf
    low = given.room
    high = max(2 * low, 1.0)
    while not fits(high):
        low, high = high, 2 * high
    while high > 1.02 * low and time.perf_counter() < deadline_s:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
