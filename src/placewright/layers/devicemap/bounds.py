"""Values that no device map can beat: every layer on some device, memory in sum, no transfers."""

from __future__ import annotations

import numpy as np

from placewright.layers.devicemap.judge import group_counts
from placewright.layers.devicemap.problem import MapProblem
from placewright.numerics.arrays import FloatArray

STEPS = 300


def lower_bound_s(problem: MapProblem) -> float:
    """Seconds per token (of one stream, or of all users together) that no plan is below.

    Give every layer to any device, whole, and ask only that the bytes of weights and caches on a
    device be at most its memory. For prices q >= 0 of memory and p >= 0 of passages, sum 1 with
    those of the devices' loads, min over devices of (p's seconds + q's bytes), summed over layers,
    less q's memory, is a lower bound by weak duality; subgradient steps raise it. For one stream
    the load is the sum of all devices. With groups of users the period is at least the passage
    and `groups` times the load of each device. Weights from disk need no memory and take the time
    to read them. Transfers, workspaces and the order of layers are left out.
    """
    if problem.objective == "latency":
        return _dual(problem, 1, 1)
    return min(period_bound_s(problem, groups) for groups in group_counts(problem)) / problem.users


def period_bound_s(problem: MapProblem, groups: int) -> float:
    """Lower bound on the period with this number of groups."""
    return _dual(problem, -(-problem.users // groups), groups)


def _dual(problem: MapProblem, users: int, groups: int) -> float:
    """Lower bound on max(sum of all seconds, groups x the busiest device's seconds)."""
    m, n = problem.m, problem.n
    seconds = problem.decode_s(users, busy=problem.busy)
    held = problem.weights - problem.shared + problem.cache
    decoded = np.array([layer.decodes for layer in problem.model.layers])
    read = np.where(decoded, problem.weights, 0.0)
    with_disk = np.flatnonzero(np.isfinite(problem.disk_s_per_byte))
    rows = [seconds, seconds[with_disk] + read * problem.disk_s_per_byte[with_disk, None]]
    time = np.concatenate(rows)  # (m + disks, n)
    of = np.concatenate([np.arange(m), with_disk])
    memory = np.concatenate([np.ones(m), np.zeros(len(with_disk))])[:, None] * held
    room = np.where(np.isfinite(problem.capacity), problem.capacity, held.sum())
    scale = max(float(time.min(axis=0).sum()), 1e-30)
    price = np.zeros(m)  # seconds per share of a device's memory
    share = np.zeros(m)  # of the loads, beside 1 - sum for the passage
    if groups > 1:
        share = _by_speed(seconds)
    best = 0.0
    for step in range(1, STEPS + 1):
        passage = max(0.0, 1.0 - share.sum())
        cost = time * (passage + groups * share[of])[:, None]
        cost = cost + memory * (price / room)[of][:, None]
        chosen = cost.argmin(axis=0)
        best = max(best, float(cost[chosen, np.arange(n)].sum() - price.sum()))
        used = np.bincount(of[chosen], memory[chosen, np.arange(n)], m) / room - 1.0
        price = np.maximum(0.0, price + scale / step**0.7 * used)
        if groups > 1:
            load = np.bincount(of[chosen], time[chosen, np.arange(n)], m)
            slope = (groups * load - load.sum()) / scale
            share = np.maximum(0.0, share + 0.1 / step**0.7 * slope)
            share = share / max(1.0, share.sum())
    # A device takes less than its layers by this much at most, and `groups` times that in a period.
    visit_s = problem.visit_s(users, busy=problem.busy)
    return max(0.0, best + groups * float(np.minimum(visit_s, 0.0).sum()))


def _by_speed(seconds: FloatArray) -> FloatArray:
    """Shares proportional to the devices' speeds on the whole model."""
    speed = 1.0 / np.maximum(seconds.sum(axis=1), 1e-30)
    found: FloatArray = speed / speed.sum()
    return found
