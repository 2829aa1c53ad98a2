"""Plan of wing 1: which device runs which operator, and in what order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from placewright.errors import InfeasibleError, InputError, look_up
from placewright.io.arguments import checked
from placewright.numerics.arrays import BoolArray, IntArray, IntVector, freeze_arrays
from placewright.operators.problem import Communication, OperatorProblem


class Dispatch(StrEnum):
    """How a device chooses its next operator.

    READY: whenever it is free it starts the ready operator that comes first in the order
    (work-conserving). IN_ORDER: it waits for the next operator of its sequence, which is how
    a schedule with insertion means its order, and how a worker process runs.
    """

    READY = "ready"
    IN_ORDER = "in-order"


SINGLE = "only:"
"""Begins the names of planners that put everything on one device."""


@checked
@dataclass(frozen=True, slots=True, eq=False)
class OperatorPlan:
    """A placement and, optionally, an order.

    Attributes
    ----------
    placement
        Shape (n,), device index of every operator.
    order
        Shape (n,), a permutation of the operators, first come first; ``None`` leaves the
        order to the judge (upward rank under this placement).
    call
        Shape (n,), for accelerators that are called (star latency): in which of its device's
        calls an operator runs, from 0; ``None`` takes the earliest that the graph allows.
    replica_of
        Shape (m,), for pipelines with replicated stages: the device whose operators each device
        has copies of, itself where it has none; ``None`` for no copies.
    """

    placement: IntVector
    order: IntVector | None = None
    dispatch: Dispatch = Dispatch.READY
    call: IntVector | None = None
    replica_of: IntVector | None = None

    def __post_init__(self) -> None:
        freeze_arrays(self)
        if self.order is None and self.dispatch is Dispatch.IN_ORDER:
            raise InputError("an in-order plan needs an order", where="plan")

    @staticmethod
    @checked
    def of(
        problem: OperatorProblem,
        placement: Mapping[str, str],
        order: Sequence[str] | None = None,
        *,
        where: str = "plan",
    ) -> OperatorPlan:
        """A plan by names: the device of every operator, and the order of the operators.

        Raises `UnknownNameError`: an operator or a device that does not exist.
        Raises `InputError`: an operator without a device.
        """
        operator = {name: i for i, name in enumerate(problem.operator_names)}
        device = {name: d for d, name in enumerate(problem.device_names)}
        place = np.full(problem.n, -1)
        for name, target in placement.items():
            i = look_up("operator", name, operator, f"{where}.placement")
            place[i] = look_up("device", target, device, f"{where}.placement.{name}")
        if place.min() < 0:
            missing = problem.operator_names[int(place.argmin())]
            raise InputError(
                f"operator {missing!r} has no device",
                where=f"{where}.placement",
                by=f"{int((place < 0).sum())} of {len(place)} are missing",
            )
        ordered = [look_up("operator", x, operator, f"{where}.order") for x in order or ()]
        if order is not None and len(ordered) != problem.n:
            by = f"{len(ordered)} for {problem.n}"
            raise InputError("must list every operator once", where=f"{where}.order", by=by)
        return OperatorPlan(place, None if order is None else np.array(ordered, dtype=np.int64))

    @checked
    def devices(self, problem: OperatorProblem) -> dict[str, str]:
        """The device of every operator of the problem, by names."""
        names = zip(problem.operator_names, self.placement.tolist(), strict=True)
        return {operator: problem.device_names[device] for operator, device in names}


def check_plan(problem: OperatorProblem, plan: OperatorPlan) -> None:
    """Raise where a plan breaks a rule that no schedule can repair (the judge checks memory).

    Raises `InputError`: wrong length, a device or an order that does not exist.
    Raises `InfeasibleError`: an operator on a device that cannot run it, a group that is split.
    """
    where = f"plan for {problem.name}"
    place = plan.placement
    if np.shape(place) != (problem.n,):
        raise InputError(
            "placement has the wrong length", where=where, by=f"{np.size(place)} for {problem.n}"
        )
    if place.min() < 0 or place.max() >= problem.m:
        raise InputError("placement names a device that does not exist", where=where)
    bad = np.flatnonzero(~np.isfinite(problem.compute_s[np.arange(problem.n), place]))
    pin = np.flatnonzero((problem.pinned >= 0) & (problem.pinned != place))
    if len(bad) or len(pin):
        op = int(bad[0]) if len(bad) else int(pin[0])
        raise InfeasibleError(
            f"{problem.operator_names[op]!r} cannot run on {problem.device_names[place[op]]!r}",
            where=where,
        )
    _, first, group = np.unique(problem.colocation, return_index=True, return_inverse=True)
    split = np.flatnonzero(place[first][group] != place)
    if len(split):
        op, mate = int(split[0]), int(first[group[split[0]]])
        raise InfeasibleError(
            f"{problem.operator_names[op]!r} and {problem.operator_names[mate]!r} belong together "
            "and are on different devices",
            where=where,
            hint="place both on one device",
        )
    if plan.order is not None and not np.array_equal(np.sort(plan.order), np.arange(problem.n)):
        raise InputError("order must list every operator once", where=where)
    if plan.call is not None:
        _check_calls(problem, plan.call, where)
    if plan.replica_of is not None:
        _check_replicas(problem, plan.replica_of, place, where)


def _check_calls(problem: OperatorProblem, call: IntArray, where: str) -> None:
    if call.shape != (problem.n,):
        raise InputError(
            "call has the wrong length", where=where, by=f"{call.shape[0]} for {problem.n}"
        )
    if call.min() < 0 or call.max() >= problem.calls:
        raise InputError(
            "call names a call that is not allowed",
            where=where,
            by=f"{int(call.max())}, {problem.calls} calls per accelerator",
        )


def _check_replicas(
    problem: OperatorProblem, leader: IntArray, place: IntArray, where: str
) -> None:
    """Copies are of a device with operators of its own, on devices like it that have none."""
    m, names = problem.m, problem.device_names
    copies = leader != np.arange(m) if leader.shape == (m,) else np.ones(1, dtype=np.bool_)
    if leader.shape != (m,) or leader.min() < 0 or leader.max() >= m:
        raise InputError("replica_of needs a device that exists for each device", where=where)
    if copies.any() and not problem.pipeline.replication:
        raise InputError(
            "the problem does not ask for replicated stages",
            where=where,
            hint="streams have them: give --objective throughput, and --replication to plan them",
        )
    alike = device_kinds(problem)
    used = np.bincount(place, minlength=m) > 0
    for d in np.flatnonzero(copies).tolist():
        of = int(leader[d])
        if copies[of] or used[d]:
            raise InputError(f"{names[d]!r} cannot be a copy of {names[of]!r}", where=where)
        differ = problem.pipeline.by_speed and problem.communication is Communication.PAIRWISE
        if not differ and alike[d] != alike[of]:
            raise InputError(f"{names[d]!r} is a copy of {names[of]!r} and unlike it", where=where)
        _check_copied(problem, d, place == of, where)


def _check_copied(problem: OperatorProblem, d: int, stage: BoolArray, where: str) -> None:
    """A device with a copy of a stage can run it, and none of it is pinned elsewhere."""
    bad = np.flatnonzero(stage & (~np.isfinite(problem.compute_s[:, d]) | (problem.pinned >= 0)))
    if len(bad):
        raise InfeasibleError(
            f"{problem.operator_names[int(bad[0])]!r} cannot be copied to "
            f"{problem.device_names[d]!r}",
            where=where,
        )


def device_kinds(problem: OperatorProblem) -> IntArray:
    """Shape (m,): the first device with the same times, memory, host link and cluster."""
    p = problem
    clusters = p.pipeline.cluster or (-1,) * p.m
    within = p.pipeline.cluster_seconds_per_byte or (0.0,) * p.m
    first: dict[bytes, int] = {}
    kinds = []
    for d in range(p.m):
        rest = [p.memory_bytes[d], p.host_seconds_per_byte[d], clusters[d], within[d]]
        key = p.compute_s[:, d].tobytes() + np.array(rest, dtype=np.float64).tobytes()
        kinds.append(first.setdefault(key, d))
    return np.array(kinds, dtype=np.int64)
