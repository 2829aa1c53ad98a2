"""Colocation groups: what is placed as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Colocation groups, numbered by their first operator.

    Attributes
    ----------
    group
        Shape (n,), group of every operator.
    first
        Shape (groups,), first operator of each.
    allowed
        Shape (groups, m), whether every member can run there.
    resident_bytes
        Shape (groups,).
    """

    group: IntArray
    first: IntArray
    allowed: BoolArray
    resident_bytes: FloatArray


def groups_of(problem: OperatorProblem) -> Groups:
    """The problem's groups; raises `InfeasibleError`: a group that no device can run as a whole."""
    _, first, inverse = np.unique(problem.colocation, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    first = np.sort(first)
    group = rank[inverse]
    allowed = problem.allowed_groups(group)
    nowhere = np.flatnonzero(~allowed.any(axis=1))
    if len(nowhere):
        raise InfeasibleError(
            "no device can run all of a group",
            where=f"{problem.name}: the group of {problem.operator_names[first[nowhere[0]]]!r}",
            hint="split the group, or drop a pin",
        )
    resident = np.bincount(group, problem.resident_bytes).astype(np.float64)
    return Groups(group, first, allowed, resident)


def group_costs(groups: Groups, operator_costs: FloatArray) -> FloatArray:
    """Shape (groups, m): costs summed over each group, ``inf`` where it is not allowed."""
    finite = np.where(groups.allowed[groups.group], operator_costs, 0.0)
    columns = [
        np.bincount(groups.group, finite[:, d], len(groups.allowed))
        for d in range(operator_costs.shape[1])
    ]
    return np.where(groups.allowed, np.stack(columns, axis=1), np.inf)
