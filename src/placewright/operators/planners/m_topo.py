"""m-TOPO: the topological order, each device filled to an even share of the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.setup import within_memory
from placewright.operators.planners.placements.search import operator_bytes
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.operators.structure.groups import Groups, groups_of
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class MTopo:
    """Operators in topological order, each device in turn until its share of the bytes is full.

    Jeon et al., SoCC 2020 (Baechi), doi 10.1145/3419111.3421302, section 3.1. The share is the
    bytes of all operators over the number of devices, plus the largest operator. O(n m).

    Departures: a device is also left when its own memory is full (theirs are alike); an operator
    that a device cannot run goes to the next that can; the first operator of a colocation group
    decides for it.
    """

    @property
    def name(self) -> str:
        """``m-topo``."""
        return "m-topo"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Where tensors go over links."""
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            A group that no device can run.
        """
        groups = groups_of(problem)
        need = np.bincount(groups.group, operator_bytes(problem)).astype(np.float64)
        share = need.sum() / problem.m + need.max()

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            limit = np.minimum(share, budget_bytes)
            return OperatorPlan(filled_in_order(problem, groups, need, limit)[groups.group])

        return within_memory(problem, build, context.deadline_s)


def filled_in_order(
    problem: OperatorProblem, groups: Groups, need_bytes: FloatArray, limit_bytes: FloatArray
) -> IntArray:
    """Device of each group: groups in topological order, devices in theirs until they are full."""
    m, d = problem.m, 0
    device, used = np.full(len(need_bytes), -1), np.zeros(m)
    for g in groups.group[problem.topology.order].tolist():
        if device[g] >= 0:
            continue
        while d < m - 1 and used[d] + need_bytes[g] > limit_bytes[d]:
            d += 1
        target = next(q for q in ((d + x) % m for x in range(m)) if groups.allowed[g, q])
        device[g] = target
        used[target] += need_bytes[g]
    return device
