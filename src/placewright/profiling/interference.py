"""What operators take while other devices work too.

A profile, and its calibration, know devices that work alone. Several slow each other: boards of one
machine share its memory bus, and what a CPU sends and receives costs it time. So a plan that
several share is carried out for a moment, and what its operators take there counts for every plan
of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem, Overlap
from placewright.operators.run import execution_order
from placewright.profiling.calibration import LONGEST_S
from placewright.runtime.session import Session

COLD, WATCHED = 2, 3
"""Steps of a turn: the first ones are left out."""

TURNS = 2
"""Of each of the two plans, the second ones in the opposite order; the least counts."""

ENOUGH = 0.05
"""Of the busiest device's time, that one must be busy for its operators to say how fast it is."""


@dataclass(frozen=True, slots=True, eq=False)
class InterferenceProfile:
    """The same problem twice: one device at work, and several.

    Attributes
    ----------
    alone
        Times of devices that work alone.
    together
        Times of devices that work side by side.
    factors
        Shape (m,), `together` over `alone`.
    """

    alone: OperatorProblem
    together: OperatorProblem
    factors: FloatArray

    @classmethod
    def alike(cls, problem: OperatorProblem) -> Self:
        """Where nothing else is known."""
        return cls(problem, problem, np.ones(problem.m))

    def of(self, plan: OperatorPlan) -> OperatorProblem:
        """The one that a plan is to be judged by."""
        return self.alone if len(np.unique(plan.placement)) == 1 else self.together

    def __str__(self) -> str:
        shown = zip(self.alone.device_names, self.factors, strict=True)
        return ", ".join(f"{name} {factor:.2f}x" for name, factor in shown)


def interference(
    problem: OperatorProblem, session: Session, plan: OperatorPlan, single: OperatorPlan
) -> InterferenceProfile:
    """Both problems, from a few watched steps of each plan, in turns.

    The plan of one device is measured again although `problem` is calibrated: a machine's speed
    changes within a minute by more than the two kinds differ.

    Departure from a model of the machine: one factor per device, whatever the plan, so that every
    planner and the judge stay as they are. It is right for plans that keep devices about as busy
    as `plan` does, and too high for those that leave them alone most of the time. A device that
    `plan` hardly uses has the median factor of the others.

    Parameters
    ----------
    problem
        Calibrated: see `placewright.profiling.calibration`.
    session
        Workers for its devices, in their order; what they had loaded is replaced.
    plan
        A good one; where it uses one device, or one of the two takes more than `LONGEST_S`, nothing
        is carried out and both problems are equal.
    single
        A good one of one device.

    Raises
    ------
    WorkerError
        A worker died or raised.
    """
    longest_s = max(judge(problem, each).value for each in (plan, single))
    if len(np.unique(plan.placement)) == 1 or longest_s > LONGEST_S:
        return InterferenceProfile.alike(problem)
    both: tuple[tuple[OperatorPlan, list[FloatArray]], ...] = (plan, []), (single, [])
    for turn in range(TURNS):
        for each, turns in both if turn % 2 == 0 else reversed(both):
            turns.append(_seen_s(problem, session, each))
    several, one = (_factors(problem, each, min(turns, key=np.sum)) for each, turns in both)
    factors = np.maximum(several / one, 1.0)  # company makes nobody faster
    alone = problem.replace(compute_s=problem.compute_s * one)
    return InterferenceProfile(alone, alone.replace(compute_s=alone.compute_s * factors), factors)


def _seen_s(problem: OperatorProblem, session: Session, plan: OperatorPlan) -> FloatArray:
    """Shape (m,): seconds that each device computes in a step, the median over a few steps.

    Of whole steps: most of them have a burst somewhere, which medians of operators leave out.
    """
    order = execution_order(problem, judge(problem, plan))
    session.load(plan.placement.tolist(), order, serial=problem.overlap is Overlap.SERIAL)
    session.run(COLD)
    records = session.run(WATCHED, watched=True)
    busy_s = [[log.seconds.sum() for log in record.logs] for record in records]
    median: FloatArray = np.median(busy_s, axis=0)
    return median


def _factors(problem: OperatorProblem, plan: OperatorPlan, seen_s: FloatArray) -> FloatArray:
    """Shape (m,): seconds seen over seconds said, the median where a device was hardly used."""
    said_s = judge(problem, plan).busy_s
    known = (said_s > 0) & (said_s >= ENOUGH * said_s.max())
    ratio = np.divide(seen_s, said_s, out=np.ones(problem.m), where=said_s > 0)
    usual = float(np.median(ratio[known])) if known.any() else 1.0
    factors: FloatArray = np.where(known, ratio, usual)
    return factors
