"""Calibration: correct a profile by whole steps on each device's own worker.

A profile is measured on the machine that plans and scaled by ``speed``. The device itself may be
another machine, whose speed is only declared, or a CPU quota, which takes more than its share away:
after every pause caches are cold.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from placewright.adapt.device_factors import device_factor, filled
from placewright.numerics.arrays import FloatArray
from placewright.operators.interference import LONGEST_S
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
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
    session.load([device] * problem.n, problem.topology.order.tolist())
    session.run(1)
    times, begun_s = list[float](), time.perf_counter()
    while len(times) < LEAST_STEPS or max(sum(times), time.perf_counter() - begun_s) < seconds:
        times += [record.duration_s for record in session.run(1)]
    return times
