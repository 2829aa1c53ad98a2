"""CPOP: critical path on a processor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.ranks import (
    mean_critical_path,
    mean_downward_rank,
    mean_upward_rank,
)
from placewright.operators.planners.lists.scheduling import list_schedule, priority_sequence
from placewright.operators.planners.lists.setup import (
    Setup,
    scheduled_plan,
    set_up,
    within_memory,
)
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.operators.structure.links import linked
from placewright.planning.contract import Context

Transfers = Literal["different", "all", "fastest"]
"""Mean over pairs of different devices, over all pairs, or the fastest link."""


@final
@dataclass(frozen=True, slots=True)
class Cpop:
    """The mean critical path on one device, the rest by earliest finish time.

    Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002, doi 10.1109/71.993206. O(e m) and the gap
    search. Priority is upward plus downward rank with mean costs; ready operators go by it;
    critical ones to the device on which the path takes least.

    The paper takes mean transfer times without saying over what: over pairs of different devices,
    or with each device's own zero among them. Which is better depends on the graph, and so does
    taking no mean at all but the fastest link. The schedule that ends first is kept, earlier
    `transfers` first.

    Departures: those of HEFT here; several means; the path follows the arg max of the upward rank
    instead of comparing sums for equality, which rounding breaks; a critical operator that the
    device cannot run goes where it ends first.

    Parameters
    ----------
    transfers
        What priorities take a transfer to be. ``("different",)`` alone is the textbook's CPOP.
    """

    transfers: tuple[Transfers, ...] = ("different", "all", "fastest")

    @property
    def name(self) -> str:
        """``cpop``."""
        return "cpop"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
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
        rankings = [_ranking(_with_transfers(setup, over)) for over in self.transfers]
        free = np.zeros((problem.n, problem.m))

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            found = [
                list_schedule(setup.costs, setup.rules(budget_bytes, forced), sequence, free)
                for sequence, forced in rankings
            ]
            return scheduled_plan(problem, *min(found, key=_end_s))

        return within_memory(problem, build, context.deadline_s)


def _ranking(setup: Setup) -> tuple[IntArray, IntArray]:
    """The sequence by priority, and the device that the critical operators are sent to."""
    priority, path = critical_path(setup)
    forced = np.full(setup.problem.n, -1)
    forced[path] = path_device(setup, path)
    return priority_sequence(setup.costs, -priority), forced


def _with_transfers(setup: Setup, over: Transfers) -> Setup:
    """The same with transfers averaged over all pairs of devices, or on the fastest link."""
    p, share = setup.problem, (setup.problem.m - 1) / setup.problem.m
    pair = linked(p)
    if over == "different" or not pair.any():
        return setup
    latency_s, per_byte = setup.mean_latency_s * share, setup.mean_seconds_per_byte * share
    if over == "fastest":
        latency_s, per_byte = p.latency_s[pair].min(), p.seconds_per_byte[pair].min()
    return replace(setup, mean_latency_s=float(latency_s), mean_seconds_per_byte=float(per_byte))


def _end_s(schedule: tuple[IntArray, FloatArray, FloatArray]) -> float:
    """When all has ended; ``inf`` where an operator could not be reached."""
    place, _, end_s = schedule
    return float(end_s.max()) if place.min() >= 0 else np.inf


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
