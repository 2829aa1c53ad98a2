"""Operators that cost nothing and only multiply the ideals: left out, and put back at the end."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import BoolArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star.kernels import most_calls
from placewright.operators.simulation.star.latency import accelerators


def free_sources(problem: OperatorProblem) -> BoolArray:
    """Shape (n,): takes no time on a CPU, waits for nothing, and what it makes moves for free.

    Some best plan has all of them on a CPU: there they are done at time 0, in nobody's way, and
    no call is longer for it.
    """
    p, t = problem, problem.topology
    alone = _alone_on_cpu(p)
    free = np.zeros(p.n, dtype=np.bool_)
    for i in t.order.tolist():
        makers = p.tensor_producer[t.in_tensors[t.in_offsets[i] : t.in_offsets[i + 1]]]
        made = t.out_tensors[t.out_offsets[i] : t.out_offsets[i + 1]]
        free[i] = alone[i] and free[makers].all() and not p.tensor_bytes[made].any()
    return free


def idle_sinks(problem: OperatorProblem) -> BoolArray:
    """Shape (n,): takes no time on a CPU, reads one tensor, and nothing of weight reads it.

    Without them no plan gets longer, so a bound for the rest is a bound for all.
    """
    p, t = problem, problem.topology
    alone = _alone_on_cpu(p)
    idle = np.zeros(p.n, dtype=np.bool_)
    for i in t.order[::-1].tolist():
        readers = [
            p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]
            for k in t.out_tensors[t.out_offsets[i] : t.out_offsets[i + 1]].tolist()
        ]
        reads = t.in_offsets[i + 1] - t.in_offsets[i]
        idle[i] = alone[i] and reads == 1 and all(idle[r].all() for r in readers)
    return idle


def put_back(problem: OperatorProblem, place: IntArray, call: IntArray) -> OperatorPlan:
    """Give every operator without a device (-1) the one that delays least.

    A sink goes into the call of its producer where that avoids a transfer and fits, else to the
    fastest CPU.
    """
    p, t, place, call = problem, problem.topology, place.copy(), call.copy()
    unit = np.where(accelerators(p)[place], place * most_calls(p) + call, -1)
    cost = np.where(p.allowed(), p.compute_s, np.inf)
    on_cpu = np.where(accelerators(p), np.inf, cost).argmin(axis=1)
    need = np.ceil(p.resident_bytes)
    used = np.bincount(place[place >= 0], need[place >= 0], p.m)
    for i in t.order[place[t.order] < 0].tolist():
        place[i], call[i], unit[i] = on_cpu[i], 0, -1
        for k in t.in_tensors[t.in_offsets[i] : t.in_offsets[i + 1]].tolist():
            maker, readers = p.tensor_producer[k], _readers(p, k)
            seen = readers[place[readers] >= 0]
            leaves = (unit[seen[seen != i]] != unit[maker]).any()
            fits = used[place[maker]] + need[i] <= p.memory_bytes[place[maker]]
            if unit[maker] >= 0 and not leaves and fits and cost[i, place[maker]] == 0.0:
                place[i], call[i], unit[i] = place[maker], call[maker], unit[maker]
        used[place[i]] += need[i]
    return OperatorPlan(place, call=call)


def _readers(p: OperatorProblem, k: int) -> IntArray:
    return p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]


def _alone_on_cpu(p: OperatorProblem) -> BoolArray:
    """Whether an operator is a group of its own that some CPU runs in no time."""
    _, group, size = np.unique(p.colocation, return_inverse=True, return_counts=True)
    cpu_s = np.where(p.allowed() & ~accelerators(p), p.compute_s, np.inf).min(axis=1)
    alone: BoolArray = (size[group] == 1) & (cpu_s == 0.0)
    return alone
