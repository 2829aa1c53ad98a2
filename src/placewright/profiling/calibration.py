"""Calibration: what whole steps take on each device's own worker, beside what the profile says.

A profile is measured on the machine that plans and scaled by ``speed``. The device itself may be
another machine, whose speed is somebody's word, or a CPU quota, which takes more than its share
away: after every pause caches are cold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.runtime.session import Session

LONGEST_S = 6.0
"""Of a step by the profile; a device that takes longer is not asked to take three of them."""

LEAST_STEPS = 3
SECONDS = 1.5
"""Of a turn: so many steps at least, and more of them until so much time is spent."""

TURNS = 2
"""Of every device, the second ones in the opposite order; the least counts: what else a machine
does can only add."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """How many times as long as profiled each device takes.

    Attributes
    ----------
    factors
        Shape (m,), seconds measured over seconds profiled. Devices that were not asked have the
        median of the others, 1 where none was.
    asked
        Names of the devices that were measured.
    """

    problem: OperatorProblem
    factors: FloatArray
    asked: tuple[str, ...]

    def __str__(self) -> str:
        p = self.problem
        shown = zip(p.device_names, self.factors, strict=True)
        return ", ".join(f"{name} {factor:.2f}x" for name, factor in shown if name in self.asked)


def calibrated(
    problem: OperatorProblem,
    session: Session,
    *,
    seconds: float = SECONDS,
) -> Calibration:
    """The problem at the pace of the workers: a few whole steps on every device alone.

    Devices that cannot hold the whole step, or would take longer than `LONGEST_S` for it, are not
    asked.

    Parameters
    ----------
    session
        Workers for the devices of `problem`, in their order; what they had loaded is replaced.

    Raises
    ------
    WorkerError
        A worker died or raised.
    """
    expected = [_alone_s(problem, device) for device in range(problem.m)]
    asked = [device for device in range(problem.m) if expected[device] <= LONGEST_S]
    found = dict.fromkeys(asked, float("inf"))
    for turn in range(TURNS):
        for device in asked if turn % 2 == 0 else reversed(asked):
            step_s = _measured_s(problem, session, device, seconds)
            found[device] = min(found[device], step_s / expected[device])
    usual = float(np.median(list(found.values()))) if found else 1.0
    factors = np.array([found.get(device, usual) for device in range(problem.m)])
    names = tuple(problem.device_names[device] for device in found)
    return Calibration(problem.replace(compute_s=problem.compute_s * factors), factors, names)


def _alone_s(problem: OperatorProblem, device: int) -> float:
    """Seconds of a step on one device by the profile, ``inf`` where it cannot be had."""
    if not problem.allowed()[:, device].all():
        return float("inf")
    judgement = judge(problem, OperatorPlan(np.full(problem.n, device)))
    return float(judgement.busy_s[device]) if judgement.feasible else float("inf")


def _measured_s(problem: OperatorProblem, session: Session, device: int, seconds: float) -> float:
    """Median seconds of a step."""
    session.load([device] * problem.n, problem.topology.order.tolist())
    session.run(1)
    times: list[float] = []
    while len(times) < LEAST_STEPS or sum(times) < seconds:
        times += [record.duration_s for record in session.run(1)]
    return float(np.median(times))
