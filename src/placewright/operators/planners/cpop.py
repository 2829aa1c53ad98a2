"""CPOP: critical path on a processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners._list_scheduling import priority_sequence
from placewright.operators.planners._ranks import (
    mean_critical_path,
    mean_downward_rank,
    mean_upward_rank,
)
from placewright.operators.planners._setup import Setup, set_up, within_memory
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning import Context


@final
@dataclass(frozen=True, slots=True)
class Cpop:
    """The mean critical path on one device, the rest by earliest finish time.

    Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002, doi 10.1109/71.993206. O(e m) and the gap
    search. Priority is upward plus downward rank with mean costs; ready operators go by it;
    critical ones to the device on which the path takes least.

    Departures: those of HEFT here; the path follows the arg max of the upward rank instead of
    comparing sums for equality, which rounding breaks; a critical operator that the device
    cannot run goes where it ends first.
    """

    @property
    def name(self) -> str:
        """``cpop``."""
        return "cpop"

    def supports(self, problem: OperatorProblem) -> str | None:
        """Where tensors go over links."""
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            An operator that no linked device can run.
        """
        setup = set_up(problem)
        priority, path = critical_path(setup)
        forced = np.full(problem.n, -1)
        forced[path] = path_device(setup, path)
        sequence = priority_sequence(setup.costs, -priority)

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            return setup.schedule(sequence, budget_bytes, forced=forced)

        return within_memory(problem, build)


def critical_path(setup: Setup) -> tuple[FloatArray, IntArray]:
    """CPOP's priority of every operator, and the operators of the mean critical path."""
    means = setup.mean_compute_s, setup.mean_latency_s, setup.mean_seconds_per_byte
    up = mean_upward_rank(setup.costs, *means)
    down = mean_downward_rank(setup.costs, *means)
    return up + down, mean_critical_path(setup.costs, up, *means[1:])


def path_device(setup: Setup, path: IntArray) -> int:
    """The device that can run most of the path, and of those the one that takes least."""
    allowed = setup.groups.allowed[setup.groups.group[path]]
    took = np.where(allowed, setup.problem.compute_s[path], 0.0).sum(axis=0)
    return int(np.lexsort((took, -allowed.sum(axis=0)))[0])
