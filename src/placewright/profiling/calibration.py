"""Calibration: correct a profile by whole steps on workers, and measure interference.

A profile is measured on the machine that plans and scaled by ``speed``. The device itself may be
another machine, whose speed is only declared, or a CPU quota, which takes more than its share away:
after every pause caches are cold.

Interference is what operators take longer while other devices compute too. A profile, and its
calibration, know devices that compute alone. Several slow each other: boards of
one machine share its memory bus, and what a CPU sends and receives costs it time. So a plan over
several devices is executed for a moment, and its factors hold for every plan of that kind.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from placewright.adapt.device_factors import device_factor, filled
from placewright.numerics.arrays import FloatArray
from placewright.operators.interference import LONGEST_S, InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.run import load_plan
from placewright.runtime.session import Session

LEAST_STEPS = 3
SECONDS = 1.5
"""Of a turn: so many steps at least, and more of them until so much time has passed.

Of steps below a millisecond most time passes between them: it counts.
"""

TURNS = 2
"""Of every device, the second ones in the opposite order."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The calibrated problem, and how many times as long as profiled each device takes.

    `factors`: Shape (m,), measured over profiled seconds (`placewright.adapt.device_factors`).
    `measured`: names of the devices that were measured; the others have the median factor.
    """

    problem: OperatorProblem
    factors: FloatArray
    measured: tuple[str, ...]

    def __str__(self) -> str:
        factors = zip(self.problem.device_names, self.factors, strict=True)
        return ", ".join(f"{n} {factor:.2f}x" for n, factor in factors if n in self.measured)


def calibrated(
    problem: OperatorProblem, session: Session, *, seconds: float = SECONDS
) -> Calibration:
    """Measure a few whole steps on every device alone and correct the problem by them.

    Devices that cannot hold the whole step, or are predicted to take longer than `LONGEST_S` for
    it, are not measured.

    `session`: workers for the devices of `problem`, in their order; what they had loaded is
    replaced.
    Raises `WorkerError`: a worker died or raised.
    """
    predicted_s = [_alone_s(problem, device) for device in range(problem.m)]
    devices = [device for device in range(problem.m) if predicted_s[device] <= LONGEST_S]
    turns: dict[int, list[list[float]]] = {device: [] for device in devices}
    for turn in range(TURNS):
        for device in devices if turn % 2 == 0 else reversed(devices):
            turns[device].append(_step_times_s(problem, session, device, seconds))
    found = {d: device_factor(times, predicted_s[d]) for d, times in turns.items()}
    factors = filled(found, problem.m)
    names = tuple(problem.device_names[device] for device in devices)
    return Calibration(problem.replace(compute_s=problem.compute_s * factors), factors, names)


def _alone_s(problem: OperatorProblem, device: int) -> float:
    """Predicted seconds of a whole step on one device, ``inf`` where it does not fit."""
    if not problem.allowed()[:, device].all():
        return float("inf")
    judgement = judge(problem, OperatorPlan(np.full(problem.n, device)))
    return float(judgement.busy_s[device]) if judgement.feasible else float("inf")


def _step_times_s(
    problem: OperatorProblem, session: Session, device: int, seconds: float
) -> list[float]:
    """Seconds of every step of one turn."""
    plan = OperatorPlan(np.full(problem.n, device))
    # With what the judge expects of its memory: where that is tight, steps take longer.
    load_plan(session, problem, plan, judge(problem, plan))
    session.run(1)
    times, begun_s = list[float](), time.perf_counter()
    while len(times) < LEAST_STEPS or max(sum(times), time.perf_counter() - begun_s) < seconds:
        times += [record.duration_s for record in session.run(1)]
    return times


COLD, WATCHED = 2, 3
"""Steps of a turn: the first ones are left out."""


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
    load_plan(session, problem, plan, judge(problem, plan))
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
