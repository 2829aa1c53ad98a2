"""METIS as a baseline: balanced parts, few bytes between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from placewright.errors import MissingDependencyError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.costs import Groups, group_costs, groups_of
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context

SCALE = 1_000_000
"""METIS takes whole numbers: the largest weight becomes this."""


LEAST_DUE = 0.5
"""Least share of a device, in groups; METIS prints warnings about parts without a vertex."""


@final
@dataclass(frozen=True, slots=True)
class Metis:
    """Colocation groups parted so that bytes between parts are few, time shared by speed.

    Karypis, Kumar 1998 (doi 10.1137/S1064827595287997), by pymetis (extra ``exact``). It knows
    neither the direction of edges nor memory nor links: a baseline that papers compare with.

    Departures: parts are as large as devices are fast, and a device that is due less than half a
    group gets none; a group that its part's device cannot run goes to the fastest device that can.
    """

    name: ClassVar[str] = "metis"

    unsupported_reason = staticmethod(pairwise_only)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises `MissingDependencyError` (pymetis is not installed) or `InfeasibleError` (a group
        that no device can run).
        """
        groups = groups_of(problem)
        work = group_costs(groups, problem.compute_s)
        part = _parts(problem, groups, work, context.seed)
        own = groups.allowed[np.arange(len(part)), part]
        return OperatorPlan(np.where(own, part, work.argmin(axis=1))[groups.group])


def _parts(problem: OperatorProblem, groups: Groups, work: FloatArray, seed: int) -> IntArray:
    """Part of each group."""
    pymetis = _pymetis()
    count, m = work.shape
    if m == 1 or count <= m:
        alone: IntArray = np.arange(count) % m
        return alone
    finite = np.isfinite(work)
    mean = np.where(finite, work, 0.0).sum(axis=1) / finite.sum(axis=1)
    speed = finite.sum(axis=0) / np.maximum(np.where(finite, work, 0.0).sum(axis=0), 1e-300)
    share = np.where(finite.any(axis=0), speed, 0.0) + 1e-9 * speed.max()
    due = np.flatnonzero(share * count >= LEAST_DUE * share.sum())
    if len(due) == 1:
        return np.full(count, due[0])
    first, neighbour, weight = _edges(problem, groups)
    _, part = pymetis.part_graph(
        len(due),
        pymetis.CSRAdjacency(first.tolist(), neighbour.tolist()),
        vweights=_whole(mean).tolist(),
        eweights=_whole(weight).tolist(),
        tpwgts=_sum_to_one(share[due]),
        recursive=len(due) <= 8,
        options=pymetis.Options(seed=seed % 2**31),
    )
    found: IntArray = due[np.asarray(part, dtype=np.int64)]
    return found


def _sum_to_one(share: FloatArray) -> list[float]:
    """As METIS takes it: the last is what the others leave."""
    parts: list[float] = (share / share.sum()).tolist()
    return [*parts[:-1], 1.0 - sum(parts[:-1])]


def _edges(problem: OperatorProblem, groups: Groups) -> tuple[IntArray, IntArray, FloatArray]:
    """CSR of the undirected graph of groups, with bytes between them."""
    tensor = problem.consumed
    a, b = groups.group[problem.tensor_producer[tensor]], groups.group[problem.consumers]
    size = problem.tensor_bytes[tensor]
    a, b, size = a[a != b], b[a != b], size[a != b]
    count = len(groups.first)
    key, inverse = np.unique(np.r_[a * count + b, b * count + a], return_inverse=True)
    weight = np.bincount(inverse, np.r_[size, size], minlength=len(key))
    first = np.searchsorted(key // count, np.arange(count + 1))
    return first, key % count, weight.astype(np.float64)


def _whole(values: FloatArray) -> IntArray:
    """Scaled to whole numbers from 1."""
    top = float(values.max(initial=0.0))
    scaled = values * (SCALE / top if top > 0 else 0.0)
    return np.maximum(1, np.rint(scaled)).astype(np.int64)


def _pymetis() -> Any:
    try:
        import pymetis
    except ImportError:
        raise MissingDependencyError("pymetis", extra="exact", purpose="planner 'metis'") from None
    return pymetis
