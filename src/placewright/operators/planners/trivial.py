"""Simple plans: one device, round robin, random, devices filled one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.costs import Groups, group_costs, groups_of
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.planners.chains import depth_first_line
from placewright.operators.planners.lists.insertion import within_memory
from placewright.operators.planners.placements import operator_bytes
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context, TakesEveryProblem


@final
@dataclass(frozen=True, slots=True)
class Single:
    """Everything on one device, the baseline of every other plan.

    O(n). Operators that the device cannot run, or that are pinned elsewhere, make the plan
    infeasible: a single device is one device.

    `device`: its name.
    """

    device: str

    @property
    def name(self) -> str:
        """``only:<device>``."""
        return f"{SINGLE}{self.device}"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Whether the device exists."""
        return None if self.device in problem.device_names else f"no device {self.device!r}"

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: the device cannot run an operator."""
        device = problem.device_names.index(self.device)
        refused = np.flatnonzero(~problem.allowed()[:, device])
        if len(refused):
            raise InfeasibleError(
                f"{self.device!r} cannot run {problem.operator_names[refused[0]]!r}",
                where=problem.name,
                by=f"{len(refused)} of {problem.n} operators",
            )
        return OperatorPlan(np.full(problem.n, device))


def single_loads_s(problem: OperatorProblem) -> FloatArray:
    """Shape (m,): seconds of all operators on each device.

    ``inf`` where it cannot run all of them, or hold what lives there.
    """
    able = problem.allowed().all(axis=0)
    able &= np.ceil(problem.resident_bytes.sum()) <= problem.memory_bytes
    return np.where(able, problem.compute_s.sum(axis=0), np.inf)


@final
@dataclass(frozen=True, slots=True)
class RoundRobin(TakesEveryProblem):
    """Colocation groups, in topological order, to devices in turn. O(n m).

    A group that its device cannot run goes to the next one that can.
    """

    name: ClassVar[str] = "round-robin"

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: a group that no device can run."""
        groups, m = groups_of(problem), problem.m
        device = np.full(len(groups.first), -1)
        turn = 0
        for g in groups.group[problem.topology.order]:
            if device[g] < 0:
                device[g] = next(
                    d for d in ((turn + x) % m for x in range(m)) if groups.allowed[g, d]
                )
                turn += 1
        return OperatorPlan(device[groups.group])


@final
@dataclass(frozen=True, slots=True)
class Random(TakesEveryProblem):
    """Every colocation group on an allowed device, drawn uniformly. O(n m)."""

    name: ClassVar[str] = "random"

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: a group fits no device."""
        groups = groups_of(problem)
        draw = np.random.default_rng(context.seed).random(groups.allowed.shape)
        choice = np.where(groups.allowed, draw, -1.0).argmax(axis=1)
        return OperatorPlan(choice[groups.group])


@final
@dataclass(frozen=True, slots=True)
class TopologicalSplit:
    """A topological order cut into one stretch per device, in the devices' order. O(n m).

    The order goes depth first, so that a transposed weight stands right before its reader. A device
    takes operators until it has done its share of the time (each device's share is in proportion
    to its speed on all operators) and the devices after it can hold the rest, or until its memory
    is full. The first operator of a colocation group decides for its group; one that the device
    cannot run goes to the next device that can.
    """

    name: ClassVar[str] = "topological-split"

    unsupported_reason = staticmethod(pairwise_only)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: a group that no device can run."""
        groups = groups_of(problem)
        work = group_costs(groups, problem.compute_s)
        share_s = _share(work)

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            device = _split(problem, groups, work, share_s, budget_bytes)
            return OperatorPlan(device[groups.group])

        return within_memory(problem, build, context.deadline_s)


def _share(work: FloatArray) -> float:
    """Seconds after which a device has done its share: all ends together at plain speeds."""
    total = np.where(np.isfinite(work), work, 0.0).sum(axis=0)
    speed = np.isfinite(work).sum(axis=0) / np.maximum(total, 1e-300)
    fastest = work.min(axis=1).sum()
    return float(fastest * speed.max() / speed.sum())


def _split(
    problem: OperatorProblem,
    groups: Groups,
    work: FloatArray,
    share_s: float,
    budget_bytes: FloatArray,
) -> IntArray:
    m, d = problem.m, 0
    device = np.full(len(groups.first), -1)
    busy, used = np.zeros(m), np.zeros(m)
    left_bytes = groups.resident_bytes.sum()
    for g in groups.group[np.argsort(depth_first_line(problem))].tolist():
        if device[g] >= 0:
            continue
        need = groups.resident_bytes[g]
        while d < m - 1 and groups.allowed[g, d]:
            done = busy[d] + work[g, d] / 2 > share_s and left_bytes <= budget_bytes[d + 1 :].sum()
            if not done and used[d] + need <= budget_bytes[d]:
                break
            d += 1
        target = next(q for q in ((d + x) % m for x in range(m)) if groups.allowed[g, q])
        device[g] = target
        busy[target] += work[g, target]
        used[target] += need
        left_bytes -= need
    return device


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

    name: ClassVar[str] = "m-topo"

    unsupported_reason = staticmethod(pairwise_only)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: a group that no device can run."""
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
