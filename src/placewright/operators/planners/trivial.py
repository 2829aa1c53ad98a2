"""Trivial plans: one device, round robin, random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray
from placewright.operators.groups import groups_of
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context


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
class RoundRobin:
    """Colocation groups, in topological order, to devices in turn. O(n m).

    A group that its device cannot run goes to the next one that can.
    """

    name: ClassVar[str] = "round-robin"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Always."""
        return None

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
class Random:
    """Every colocation group on an allowed device, drawn uniformly. O(n m)."""

    name: ClassVar[str] = "random"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Always."""
        return None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: a group fits no device."""
        groups = groups_of(problem)
        draw = np.random.default_rng(context.seed).random(groups.allowed.shape)
        choice = np.where(groups.allowed, draw, -1.0).argmax(axis=1)
        return OperatorPlan(choice[groups.group])
