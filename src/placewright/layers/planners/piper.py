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
from placewright.layers.planners._load_kernels import cover, interval_costs, knapsack, stage_loads
from placewright.layers.problem import LayerProblem
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Context
from placewright.report.text import size

NEAR = (1.05, 1.25, 2.0, 4.0)
"""Multiples of the bound that are tried as largest loads before bisection."""


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Loads of all intervals.

    Attributes
    ----------
    replicas
        Shape (D,): numbers of replicas, divisors of the batch.
    start
        Shape (D,): where the loads of a number of replicas begin, by samples in flight.
    load
        Shape (pairs, T, sum of samples in flight): seconds per sample, ``inf`` where nothing fits.
    """

    replicas: IntArray
    start: IntArray
    load: FloatArray


Tables = tuple[IntArray, IntArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]


def _tables(p: LayerProblem) -> Tables:
    """What the kernels read of edges and variants, in the order of their parameters."""
    v = costs_of(p)
    return (
        np.array(p.edge_source),
        np.array(p.edge_target),
        np.array(p.edge_bytes),
        np.array(v.sync_in_bytes),
        np.array(v.sync_out_bytes),
        np.array(v.time_s),
        np.array(v.parameter_bytes),
    )


def loads_of(p: LayerProblem) -> Loads:
    """Loads of every interval, tensor degree, number of replicas and samples in flight."""
    v = costs_of(p)
    most = min(v.batch_samples, p.w)
    replicas = np.array([d for d in range(1, most + 1) if v.batch_samples % d == 0], dtype=np.int64)
    counts = most // replicas + 2
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    degrees = np.array(p.degrees, dtype=np.int64)
    table = stage_loads(
        p.n,
        *_tables(p),
        np.array(v.in_flight_bytes),
        np.array(v.fixed_bytes),
        degrees,
        replicas,
        start,
        p.w,
        most,
        float(v.batch_samples),
        float(v.bandwidth),
        float(p.memory_bytes.min()),
    )
    return Loads(replicas, start, table)


@final
@dataclass(frozen=True, slots=True)
class LoadDp:
    """The module's dynamic programme; `dp` on problems of throughput."""

    name: ClassVar[str] = "dp"

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where layers have more than two variants."""
        if problem.variants is None:
            return "plans throughput, not steps"
        return None if len(problem.variants.names) <= 2 else "takes two variants of a layer"

    def __call__(self, problem: LayerProblem, context: Context) -> LayerPlan:
        """The plan; raises `InfeasibleError` with the smallest shortfall."""
        return best_plan(problem, context.deadline_s)


def best_plan(p: LayerProblem, deadline_s: float = np.inf) -> LayerPlan:
    """The least largest load."""
    table = loads_of(p)
    values = np.unique(table.load[np.isfinite(table.load)])
    degrees = np.array(p.degrees, dtype=np.int64)
    most = min(costs_of(p).batch_samples, p.w)

    def covered(limit: float) -> tuple[FloatArray, IntArray]:
        found: tuple[FloatArray, IntArray] = cover(
            p.n, table.load, degrees, table.replicas, table.start, p.w, most, limit
        )
        return found

    # The answer is among ``values[low : high + 1]``; whether a limit is enough grows with it.
    low, high, least = 0, len(values) - 1, bounds(p)["load"]
    for factor in NEAR:  # most answers are near the bound, and time may end the bisection
        at = int(np.searchsorted(values, factor * least, side="right")) - 1
        if low <= at < high:
            if (covered(values[at])[0][0] <= p.w).any():
                high = at
                break
            low = at + 1
    else:
        if len(values) == 0 or not (covered(values[-1])[0][0] <= p.w).any():
            raise _no_room(p, deadline_s)
    while low < high:
        middle = (low + high) // 2
        if (covered(values[middle])[0][0] <= p.w).any():
            high = middle
        else:
            low = middle + 1
        if time.perf_counter() > deadline_s:
            break
    # `high` is always enough, also where time has ended the bisection.
    return _plan(p, *covered(values[high]), degrees, table)


def _plan(
    p: LayerProblem, devices: FloatArray, choice: IntArray, degrees: IntArray, table: Loads
) -> LayerPlan:
    """Read the stages and the variants out of the choices."""
    s, i, used = int(np.argmin(devices[0])), 0, 0
    stages: list[Stage] = []
    variants = np.zeros(p.n, dtype=np.int64)
    while i < p.n:
        j, t, k = choice[i, s].tolist()
        d, degree = int(table.replicas[k]), int(degrees[t])
        workers = [
            Replica(tuple(range(used + r * degree, used + (r + 1) * degree)), 1) for r in range(d)
        ]
        variants[i:j] = chosen_variants(p, i, j, t, d, -(-s // d))
        stages.append(Stage(i, j - 1, tuple(workers), degree))
        i, s, used = j, s - d, used + d * degree
    return LayerPlan(tuple(stages), variants=tuple(variants.tolist()))


def chosen_variants(p: LayerProblem, i: int, j: int, t: int, d: int, flight: int) -> IntArray:
    """Variants of the layers of a stage, as the table has them."""
    v = costs_of(p)
    cost = interval_costs(
        i,
        j,
        t,
        d,
        *_tables(p),
        float(v.batch_samples),
        float(v.bandwidth),
    )
    memory = np.array(v.fixed_bytes[i:j, t] + flight * v.in_flight_bytes[i:j, t])
    pick = np.zeros(j - i, dtype=np.int64)
    knapsack(cost, memory, float(p.memory_bytes.min()), pick)
    return pick


def _no_room(p: LayerProblem, deadline_s: float) -> InfeasibleError:
    """Which device misses least memory, in the plan with the smallest stages."""
    v, room = costs_of(p), float(p.memory_bytes.min())
    needs = (v.fixed_bytes + v.in_flight_bytes).min(axis=(1, 2))
    layer = int(needs.argmax())
    over = float(needs[layer]) - room
    total = float(needs.sum()) - room * p.w
    if over > 0:
        by = f"layer {p.layer_names[layer]!r} alone needs {size(over)} more on {p.worker_names[0]}"
    elif total > 0:
        by = f"all layers need {size(total)} more than all devices have, {p.worker_names[0]} too"
    elif math.isinf(least := _least_room(p, deadline_s)):
        by = f"no stages on {p.w} devices have costs for all layers, whatever the memory"
    else:
        more = least - room
        by = f"the cut that needs least memory needs {size(more)} more on {p.worker_names[0]}"
    return InfeasibleError("the layers fit in no strategy", where=p.name, by=by)


def _least_room(p: LayerProblem, deadline_s: float) -> float:
    """Least bytes on every device with which a plan fits, to 2 % if time lasts; ``inf``: none."""

    def fits(room: float) -> bool:
        table = loads_of(p.replace(memory_bytes=np.full(p.w, room)))
        degrees, most = np.array(p.degrees, dtype=np.int64), min(costs_of(p).batch_samples, p.w)
        devices, _ = cover(
            p.n, table.load, degrees, table.replicas, table.start, p.w, most, sys.float_info.max
        )
        return bool((devices[0] <= p.w).any())

    if not fits(sys.float_info.max):
        return math.inf
    low = float(p.memory_bytes.min())
    high = max(2 * low, 1.0)
    while not fits(high):
        low, high = high, 2 * high
    while high > 1.02 * low and time.perf_counter() < deadline_s:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
