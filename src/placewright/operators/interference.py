"""Interference: how much longer operators take while other devices compute too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem

LONGEST_S = 6.0
"""Longest predicted step of plans that are executed only to measure them."""


def copies_something(plan: OperatorPlan) -> bool:
    """Whether a device has a copy of another one's operators."""
    leader = plan.replica_of
    return leader is not None and bool((leader != np.arange(len(leader))).any())


@dataclass(frozen=True, slots=True, eq=False)
class InterferenceProfile:
    """Costs of a problem while one device computes, and while several do.

    `placewright.profiling.calibration` measures it.

    Attributes
    ----------
    alone
        Costs of a device that computes alone.
    together
        Costs of devices that compute at the same time.
    factors
        Shape (m,), `together` over `alone`.
    copied
        Costs of devices that each have a copy of the whole model and take samples of a stream: all
        weights go through every cache. ``None`` where it was not measured.
    """

    alone: OperatorProblem
    together: OperatorProblem
    factors: FloatArray
    copied: OperatorProblem | None = None

    @classmethod
    def alike(cls, problem: OperatorProblem) -> Self:
        """Without interference, or where none was measured."""
        return cls(problem, problem, np.ones(problem.m))

    def of(self, plan: OperatorPlan) -> OperatorProblem:
        """The problem that a plan is to be judged by."""
        if len(np.unique(plan.placement)) > 1:
            return self.together
        return self.whole_copies if copies_something(plan) else self.alone

    @property
    def whole_copies(self) -> OperatorProblem:
        """The problem that plans with copies of the whole model are judged by."""
        return self.together if self.copied is None else self.copied

    def measured(self, plan: OperatorPlan, problem: OperatorProblem) -> Self:
        """With the costs of `problem` for plans of this kind: one was measured."""
        if len(np.unique(plan.placement)) > 1:
            return self.with_together(problem)
        costs = self.alone.replace(compute_s=problem.compute_s)
        if copies_something(plan):
            return replace(self, copied=costs)
        return replace(self, alone=costs)

    def with_together(self, problem: OperatorProblem) -> Self:
        """With the costs of `problem` for devices that compute at the same time."""
        costs = self.alone.replace(compute_s=problem.compute_s)
        finite = np.isfinite(costs.compute_s)
        sums = [np.where(finite, c.compute_s, 0.0).sum(axis=0) for c in (costs, self.alone)]
        return replace(self, together=costs, factors=sums[0] / np.maximum(sums[1], 1e-300))

    def with_options(self, problem: OperatorProblem) -> Self:
        """The same costs with the objective and the other options of `problem`."""
        options = {
            name: getattr(problem, name)
            for name in ("objective", "contiguous", "links", "overlap", "pipeline")
        }
        alone, together = self.alone.replace(**options), self.together.replace(**options)
        copied = None if self.copied is None else self.copied.replace(**options)
        return replace(
            self,
            alone=alone,
            together=alone if self.together is self.alone else together,
            copied=copied,
        )

    def __str__(self) -> str:
        factors = zip(self.alone.device_names, self.factors, strict=True)
        return ", ".join(f"{name} {factor:.2f}x" for name, factor in factors)
