"""Throughput of a plan over links, where a pipeline is more than one stage per device.

The load of a device is its compute and every transfer on both of its ends, each tensor once per
pair of devices. A stage on r devices takes turns: each copy has 1/r of the compute, and 1/(r q) of
what the stage sends to or takes from each of the q copies of another, the mean over all meetings.
Synchronisation and passes are as in `placewright.operators.simulation.star.loads`.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star.loads import stages, sync_s


def pair_value(problem: OperatorProblem, plan: OperatorPlan) -> float:
    """The largest load, or the sum of the largest of each pass."""
    if not problem.pipeline.diffmaxima:
        return float(pair_loads(problem, plan).max())
    return float(sum(pair_loads(problem, plan, late=late).max() for late in (False, True)))


def pair_loads(
    problem: OperatorProblem, plan: OperatorPlan, *, late: bool | None = None
) -> FloatArray:
    """Shape (m,), seconds per sample; of the backward pass (`late`) or the other alone."""
    p, place = problem, plan.placement
    leader, copies = stages(p, plan)
    took = p.compute_s[np.arange(p.n), place]
    tensor = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    sent = np.unique(tensor * p.m + place[p.consumers])
    tensor, target = sent // p.m, sent % p.m
    source = place[p.tensor_producer[tensor]]
    moved = source != target
    if late is not None:
        took = np.where(p.is_backward == late, took, 0.0)
        moved &= p.is_backward[p.tensor_producer[tensor]] == late
    load = (np.bincount(place, took, p.m) / copies)[leader].astype(np.float64)
    for k, a, b in zip(tensor[moved], source[moved], target[moved], strict=True):
        givers, takers = np.flatnonzero(leader == a), np.flatnonzero(leader == b)
        link = np.ix_(givers, takers)
        share = (p.latency_s[link] + p.tensor_bytes[k] * p.seconds_per_byte[link]) / (
            len(givers) * len(takers)
        )
        load[givers] += share.sum(axis=1)
        load[takers] += share.sum(axis=0)
    return load if late is False else load + sync_s(p, plan)
