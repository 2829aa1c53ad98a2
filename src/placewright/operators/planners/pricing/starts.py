"""Placements to begin a search with, by simple rules; all obey groups and allowed devices."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.planners.chains.chain import depth_first_line
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.groups import Groups


def on_one_device(groups: Groups, costs: FloatArray) -> list[IntArray]:
    """Everything on each device; groups that it cannot run go where they run fastest."""
    fallback = costs.argmin(axis=1)
    return [
        np.where(groups.allowed[:, d], d, fallback)[groups.group] for d in range(costs.shape[1])
    ]


def with_devices_exchanged(place: IntArray, m: int) -> list[IntArray]:
    """`place` with the roles of two devices exchanged, for every pair."""
    found = []
    for a in range(m):
        for b in range(a + 1, m):
            role = np.arange(m)
            role[[a, b]] = b, a
            found.append(role[place])
    return found


def first_places(problem: OperatorProblem, groups: Groups) -> IntArray:
    """Shape (groups,): where the first operator of each group stands in a depth-first line."""
    position = depth_first_line(problem)
    first = np.full(len(groups.allowed), problem.n)
    np.minimum.at(first, groups.group, position)
    return first


def in_stretches(
    problem: OperatorProblem, groups: Groups, costs: FloatArray, weight: FloatArray
) -> list[IntArray]:
    """A depth-first line of operators cut into one stretch per device, for the 2, 3, ... m fastest.

    Parameters
    ----------
    costs
        Shape (groups, m), seconds.
    weight
        Shape (groups,): what is shared out in proportion to the devices' speed.
    """
    order = np.argsort(first_places(problem, groups), kind="stable")
    before = np.cumsum(weight[order]) - weight[order] / 2
    fallback = costs.argmin(axis=1)
    finite = np.isfinite(costs)
    total = np.where(finite, costs, costs[finite].mean()).sum(axis=0)
    speed = 1.0 / np.maximum(total, 1e-30)
    fastest = np.argsort(-speed, kind="stable")
    found = []
    for count in range(2, problem.m + 1):
        share = speed[fastest[:count]]
        ends = np.cumsum(share / share.sum()) * weight.sum()
        part = np.minimum(np.searchsorted(ends, before, side="right"), count - 1)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = fastest[part]
        open_ = groups.allowed[np.arange(len(place)), place]
        found.append(np.where(open_, place, fallback)[groups.group])
    return found
