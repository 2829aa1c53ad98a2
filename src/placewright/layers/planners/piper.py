"""Exact for throughput on a topological order: stages, replicas, tensor degrees, variants.

Every finite load of a stage is a candidate for the largest one; the smallest candidate with which
all layers can be covered is found by bisection. Whether one is enough: the least number of devices
that hold the layers from i on with s replicas in all, a dynamic programme over (i, s), as memory
depends on the replicas of the stage and of those behind it (Tarnawski et al., NeurIPS 2021, arXiv
2106.11731). O(n^2 t d s) per candidate.

Departures: stages are intervals of one topological order instead of differences of downsets. A
stage's variants are chosen by the ratio of time to memory, improved by the best single exchange.

Compiled parts of the dynamic programme for throughput.

Table of loads: ``load[pair, t, start[k] + y]`` with pair = i * (n + 1) + j for the interval of
layers i to j - 1, t the index of the tensor degree, k that of the number of replicas, y samples in
flight:

    load[pair, t] = | - y=1 y=2 ... | - y=1 y=2 ... | ...
                    ^ start[0]      ^ start[1]
                      replicas[0]     replicas[1]
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.layers.bounds import bounds
from placewright.layers.judge import costs_of
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.problem import LayerProblem
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached
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


@by_reference
class LoadInstance(NamedTuple):
    """A problem of throughput as the kernels read it: see `placewright.layers.problem.Variants`.

    By edge: `source`, `target`, `edge_bytes`, and by (edge, degree, variant) `sync_in`, `sync_out`.
    By (layer, degree, variant): `time_s`, `parameter_bytes`, `in_flight`, `fixed`.
    `replicas`: numbers of replicas that a stage may have; `start`: where the loads of each begin.
    `most`: replicas of all stages together at most. `room`: bytes of a device.
    """

    source: IntArray
    target: IntArray
    edge_bytes: FloatArray
    sync_in: FloatArray
    sync_out: FloatArray
    time_s: FloatArray
    parameter_bytes: FloatArray
    in_flight: FloatArray
    fixed: FloatArray
    degrees: IntArray
    replicas: IntArray
    start: IntArray
    devices: int
    most: int
    batch: float
    bandwidth: float
    room: float


@njit_cached
def interval_costs(p: LoadInstance, i: int, j: int, t: int, d: int) -> Any:
    """Shape (j - i, variants): seconds per sample of each layer in a stage of d replicas."""
    variants = p.time_s.shape[2]
    cost = np.empty((j - i, variants))
    for layer in range(i, j):
        for v in range(variants):
            # All-reduce as Piper counts it; once per batch, of which a sample has its share.
            sync = 4.0 * (d - 1) * p.parameter_bytes[layer, t, v] / d / p.batch
            cost[layer - i, v] = sync / p.bandwidth + p.time_s[layer, t, v] / d
    for e in range(len(p.source)):
        a, b = p.source[e], p.target[e]
        # Edges into the interval are paid at their target, edges out of it at their source: forward
        # and backward, 2.
        if i <= b < j and a < i:
            for v in range(variants):
                cost[b - i, v] += 2.0 * (p.edge_bytes[e] + p.sync_in[e, t, v]) / d / p.bandwidth
        if i <= a < j and b >= j:
            for v in range(variants):
                cost[a - i, v] += 2.0 * (p.edge_bytes[e] + p.sync_out[e, t, v]) / d / p.bandwidth
    return cost


@njit_cached
def knapsack(cost: Any, memory: Any, room: float, pick: Any) -> float:
    """Least cost of a variant per layer whose memory fits; ``inf`` if none does. Fills `pick`.

    Starts from the cheapest variants; the layers that save most memory per second change, until it
    fits; then the last change is replaced by the cheapest single one that is enough, for every
    number of changes before it.
    """
    n, variants = cost.shape
    total, held = 0.0, 0.0
    extra, saved = np.zeros(n), np.zeros(n)
    for i in range(n):
        best, other = 0, 0
        if variants > 1 and cost[i, 1] < cost[i, 0]:
            best = 1
        if variants > 1:
            other = 1 - best
        pick[i] = best
        total += cost[i, best]
        held += memory[i, best]
        if other != best and np.isfinite(cost[i, other]):
            extra[i] = cost[i, other] - cost[i, best]
            saved[i] = memory[i, best] - memory[i, other]
    if not np.isfinite(total):
        return np.inf
    if held <= room:
        return total
    # Not even with all changes.
    if held - saved[saved > 0].sum() > room:
        return np.inf
    ratio = np.full(n, np.inf)
    for i in range(n):
        if saved[i] > 0:
            ratio[i] = extra[i] / saved[i]
    order = np.argsort(ratio, kind="mergesort")
    best_cost, best_count, best_last = np.inf, -1, -1
    spent, need = 0.0, held - room
    # The first `count` changes by ratio, and one more that frees enough alone.
    for count in range(n):
        for k in range(count, n):
            i = order[k]
            if saved[i] >= need and saved[i] > 0 and spent + extra[i] < best_cost:
                best_cost, best_count, best_last = spent + extra[i], count, i
        i = order[count]
        if saved[i] <= 0 or spent >= best_cost:
            break
        spent += extra[i]
        need -= saved[i]
        if need <= 0:
            break
    if best_last < 0:
        return np.inf
    for k in range(best_count):
        pick[order[k]] = 1 - pick[order[k]]
    pick[best_last] = 1 - pick[best_last]
    return total + best_cost


@njit_cached
def stage_loads(p: LoadInstance) -> Any:
    """Loads of all intervals; see the module."""
    n = len(p.time_s)
    # Infinite: too many devices, or no memory.
    table = np.full((n * (n + 1) + 1, len(p.degrees), p.start[-1]), np.inf)
    pick = np.zeros(n, dtype=np.int64)
    for i in range(n):
        for j in range(i + 1, n + 1):
            for t in range(len(p.degrees)):
                for k in range(len(p.replicas)):
                    d = p.replicas[k]
                    if d * p.degrees[t] > p.devices:
                        continue
                    cost = interval_costs(p, i, j, t, d)
                    for y in range(1, p.most // d + 2):
                        memory = p.fixed[i:j, t] + y * p.in_flight[i:j, t]
                        found = knapsack(cost, memory, p.room, pick)
                        # More samples in flight need more memory still.
                        if not np.isfinite(found):
                            break
                        table[i * (n + 1) + j, t, p.start[k] + y] = found
    return table


@njit_cached
def cover(p: LoadInstance, load: FloatArray, limit: float) -> Any:
    """Least devices for the layers from i on with s replicas, and the first stage's j, t, k."""
    n, most = len(p.time_s), p.most
    least = np.full((n + 1, most + 1), np.inf)
    choice = np.full((n, most + 1, 3), -1, dtype=np.int64)
    least[n, 0] = 0.0
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n + 1):
            pair = i * (n + 1) + j
            for t in range(len(p.degrees)):
                for k in range(len(p.replicas)):
                    d, first = p.replicas[k], p.start[k]
                    used = d * p.degrees[t]
                    if used > p.devices or load[pair, t, first + 1] > limit:
                        continue
                    for s in range(d, most + 1):
                        # With s replicas from here on, each of the d holds ceil(s / d) samples;
                        # loads grow with them.
                        if load[pair, t, first + (s + d - 1) // d] > limit:
                            break
                        found = used + least[j, s - d]
                        if found < least[i, s]:
                            least[i, s] = found
                            choice[i, s, 0], choice[i, s, 1], choice[i, s, 2] = j, t, k
    return least, choice
