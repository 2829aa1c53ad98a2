"""Looks at what the steps do not show: devices with little work, and the links.

What was emptied because it had become slow changes no step when it is fast again. So it is probed
now and then, and only it: in a run in which nothing has become slow nothing is probed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from placewright.adapt.watch import ENOUGH, Watch
from placewright.arrays import FloatArray
from placewright.execute.probe import LARGE
from placewright.execute.session import Session
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem

LITTLE = 2 * ENOUGH
"""Share of a step under which a device is probed; twice what the steps need to show its speed."""

SLOW = 1.25
"""What takes so many times longer than profiled is looked after when it is left alone."""

FAST_AGAIN = 0.8
"""A probe over what was known; half a device's CPU more or less is far beyond, noise is not."""


@dataclass(slots=True)
class Lookout:
    """Probes one session for its watch.

    Attributes
    ----------
    share
        Of the time, that `recovered` may take.
    """

    session: Session
    watch: Watch
    share: float
    _took_s: float = 0.0
    _looked_s: float = -math.inf

    def baseline(self) -> None:
        """How fast the devices are when a run first uses them."""
        known = self.watch.observed.first_probe_s
        if not known.keys() >= set(self.watch.base.device_names):
            self._slowness()

    def all_round(self, plan: OperatorPlan) -> None:
        """Probe devices with little work and every link."""
        with self._timed():
            slowness, little = self._slowness(), _little(self.watch.problem(), plan)
            for device in np.flatnonzero(little):
                self.watch.saw_speed(int(device), slowness[device])
            for link in self.session.probe_links():
                self.watch.saw_link(*link)

    def recovered(self, plan: OperatorPlan) -> list[str]:
        """Probe what was left because it was slow; what is fast again, in words.

        Nothing where such looks would take more than their `share` of the time.
        """
        problem = self.watch.problem()
        devices = [int(d) for d in np.flatnonzero(self._slow_devices() & _little(problem, plan))]
        links = [(int(i), int(j)) for i, j in np.argwhere(self._slow_links(problem))]
        links = [pair for pair in links if pair not in _used(problem, plan)]
        waited_s = time.perf_counter() - self._looked_s
        if not (devices or links) or waited_s * self.share < self._took_s:
            return []
        with self._timed():
            return self._faster_devices(devices) + self._faster_links(links, problem)

    def _slow_devices(self) -> np.ndarray:
        return self.watch.factors() > SLOW

    def _slow_links(self, problem: OperatorProblem) -> np.ndarray:
        now, profiled = _message_s(problem), _message_s(self.watch.base)
        return np.isfinite(profiled) & (now > SLOW * profiled)

    def _faster_devices(self, devices: list[int]) -> list[str]:
        if not devices:
            return []
        before, now, faster = self.watch.factors(), self._slowness(), []
        for device in devices:
            if now[device] > FAST_AGAIN * before[device]:
                self.watch.saw_speed(device, now[device])
                continue
            self.watch.saw_change(device, now[device])
            faster.append(_told(self.watch.base.device_names[device], before[device] / now[device]))
        return faster

    def _faster_links(self, links: list[tuple[int, int]], problem: OperatorProblem) -> list[str]:
        if not links:
            return []
        before, faster, names = _message_s(problem), [], problem.device_names
        for source, target, latency_s, per_byte in self.session.probe_links(links):
            self.watch.saw_link(source, target, latency_s, per_byte)
            times = before[source, target] / (latency_s + LARGE * per_byte)
            if times * FAST_AGAIN >= 1.0:
                faster.append(_told(f"{names[source]} -> {names[target]}", times))
        return faster

    def _slowness(self) -> list[float]:
        """How many times slower each device is than when it was first probed."""
        pairs = zip(self.watch.base.device_names, self.session.probe_speeds(), strict=True)
        return [self.watch.observed.slowness(name, seconds) for name, seconds in pairs]

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._looked_s = time.perf_counter()
        self._took_s = self._looked_s - start


def _little(problem: OperatorProblem, plan: OperatorPlan) -> np.ndarray:
    """Which devices work for so short a part of a step that it does not show their speed."""
    seconds = problem.compute_s[np.arange(problem.n), plan.placement]
    loads = np.bincount(plan.placement, weights=seconds, minlength=problem.m)
    return loads < LITTLE * judge(problem, plan).value


def _used(problem: OperatorProblem, plan: OperatorPlan) -> set[tuple[int, int]]:
    """Pairs of devices between which tensors travel."""
    count = np.diff(problem.consumer_offsets)
    sources = np.repeat(plan.placement[problem.tensor_producer], count)
    targets = plan.placement[problem.consumers]
    return {(int(i), int(j)) for i, j in zip(sources, targets, strict=True) if i != j}


def _message_s(problem: OperatorProblem) -> FloatArray:
    """Shape (m, m): what the large message of a probe takes."""
    return problem.latency_s + LARGE * problem.seconds_per_byte


def _told(name: str, times: float) -> str:
    return f"{name} is {times:.1f} times faster than when it was left"
