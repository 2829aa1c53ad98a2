"""Compiled parts of the dynamic programme for throughput.

Table of loads: ``load[pair, t, start[k] + y]`` with pair = i * (n + 1) + j for the interval of
layers i to j - 1, t the index of the tensor degree, k that of the number of replicas, y samples in
flight:

    load[pair, t] = | - y=1 y=2 ... | - y=1 y=2 ... | ...
                    ^ start[0]      ^ start[1]
                      replicas[0]     replicas[1]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached


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
