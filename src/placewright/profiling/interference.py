"""Measure interference: what operators take while other devices compute too.

A profile, and its calibration, know devices that compute alone. Several slow each other: boards of
one machine share its memory bus, and what a CPU sends and receives costs it time. So a plan over
several devices is executed for a moment, and its factors hold for every plan of that kind.
"""

from __future__ import annotations

import numpy as np

from placewright.adapt.device_factors import device_factor, filled
from placewright.numerics.arrays import FloatArray
from placewright.operators.interference import LONGEST_S, InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem, Overlap
from placewright.operators.run import execution_order
from placewright.runtime.session import Session

COLD, WATCHED = 2, 3
"""Steps of a turn: the first ones are left out."""

TURNS = 2
"""Of each of the two plans, the second ones in the opposite order; the shortest turn counts."""

ENOUGH = 0.05
"""Share of the busiest device's time that a device must compute to show its own factor."""


def interference(
    problem: OperatorProblem, session: Session, plan: OperatorPlan, single: OperatorPlan | None
) -> InterferenceProfile:
    """Measure both problems, by a few watched steps of each plan in turns.

    The plan of one device is measured again although `problem` is calibrated: a machine's speed
    changes within a minute by more than the two kinds differ.

    Simplification: one factor per device, whatever the plan, so that every planner and the judge
    stay as they are. It is right for plans that keep devices about as busy as `plan` does, and too
    high for those that leave them idle most of the time. A device that `plan` hardly uses has the
    median factor of the others.

    Raises `WorkerError`: a worker died or raised.

    Parameters
    ----------
    problem
        Calibrated: see `placewright.profiling.calibration`.
    session
        Workers for its devices, in their order; what they had loaded is replaced.
    plan
        A good one; where it uses one device, or one of the two takes more than `LONGEST_S`, nothing
        is executed and both problems are equal.
    single
        A good one of one device; ``None`` where no device can have the whole model: devices are
        then assumed to be as slow alone.
    """
    plans = (plan,) if single is None else (plan, single)
    longest_s = max(judge(problem, each).value for each in plans)
    if len(np.unique(plan.placement)) == 1 or longest_s > LONGEST_S:
        return InterferenceProfile.alike(problem)
    both: list[tuple[OperatorPlan, list[FloatArray]]] = [(each, []) for each in plans]
    for turn in range(TURNS):
        for each, turns in both if turn % 2 == 0 else reversed(both):
            turns.append(_busy_s(problem, session, each))
    found = [_factors(problem, each, min(turns, key=_total_s)) for each, turns in both]
    several, one = found[0], found[-1]
    alone = problem.replace(compute_s=problem.compute_s * one)
    if single is None:
        return InterferenceProfile.alike(alone)
    factors = np.maximum(several / one, 1.0)  # other load makes no device faster
    return InterferenceProfile(alone, alone.replace(compute_s=alone.compute_s * factors), factors)


def _busy_s(problem: OperatorProblem, session: Session, plan: OperatorPlan) -> FloatArray:
    """Shape (WATCHED, m): seconds that each device computes in each step.

    Of whole steps: most of them have a burst somewhere, which medians of operators leave out.
    """
    order = execution_order(problem, judge(problem, plan))
    session.load(plan.placement.tolist(), order, serial=problem.overlap is Overlap.SERIAL)
    session.run(COLD)
    records = session.run(WATCHED, watched=True)
    return np.array([[log.seconds.sum() for log in record.logs] for record in records])


def _total_s(busy_s: FloatArray) -> float:
    """Seconds of all devices in a typical step."""
    return float(np.median(busy_s, axis=0).sum())


def _factors(problem: OperatorProblem, plan: OperatorPlan, busy_s: FloatArray) -> FloatArray:
    """Shape (m,): measured over predicted seconds, the median where a device is hardly used."""
    predicted_s = judge(problem, plan).busy_s
    used = np.flatnonzero((predicted_s > 0) & (predicted_s >= ENOUGH * predicted_s.max()))
    known = {int(d): device_factor([busy_s[:, d]], float(predicted_s[d])) for d in used}
    return filled(known, problem.m)
