"""Recovery probe: measures devices with little work and idle links, which step times do not show.

A device that was evacuated because it had become slow changes no step when it is fast again. So it
is probed now and then, and only it: in a run in which nothing has become slow nothing is probed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.operators.adaptive.online_profile import ENOUGH, OnlineProfile
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.runtime.probe import LARGE
from placewright.runtime.session import Session

LITTLE = 2 * ENOUGH
"""Share of a step under which a device is probed; twice what the steps need to show its factor."""

SLOW, SLOW_LINK = 1.5, 3.0
"""An idle device or link that takes so many times longer than profiled is probed. Busy cores make a
link's round trips twice as long, which is no loss of the link's."""

FAST_AGAIN, FAST_LINK = 0.75, 0.5
"""A probe over the one before, by more than noise explains."""


@dataclass(slots=True)
class RecoveryProbe:
    """Probes one session for its online profile.

    `share`: of the time, that `recovered` may take.
    """

    session: Session
    online: OnlineProfile
    share: float
    _took_s: float = 0.0
    _probed_s: float = -math.inf

    def baseline(self) -> None:
        """Measure how fast the devices are when a run first uses them."""
        known = self.online.observed.first_probe_s
        if not known.keys() >= set(self._names):
            self._slowness()

    def all_round(self, plan: OperatorPlan) -> None:
        """Probe every device, which is all that is known of idle ones, and every link."""
        with self._timed():
            working = set(plan.placement.tolist())
            for device, slowness in enumerate(self._slowness()):
                self.online.add_probe(device, slowness, idle=device not in working)
            for link in self.session.probe_links():
                self.online.add_link(*link)

    def recovered(self, plan: OperatorPlan) -> list[str]:
        """Probe what was evacuated because it was slow; what is fast again, in words.

        Empty where such probes would take more than their `share` of the time.
        """
        problem = self.online.problem()
        devices = [int(d) for d in np.flatnonzero(self._slow_devices() & _little(problem, plan))]
        links = [(int(i), int(j)) for i, j in np.argwhere(self._slow_links(problem))]
        links = [pair for pair in links if pair not in _used(problem, plan)]
        waited_s = time.perf_counter() - self._probed_s
        # After a probe that took t, none before t / share has passed.
        if not (devices or links) or waited_s * self.share < self._took_s:
            return []
        with self._timed():
            return self._faster_devices(devices) + self._faster_links(links, problem)

    def _slow_devices(self) -> BoolArray:
        probed = self.online.observed.slowness
        return np.array([probed.get(name, 1.0) > SLOW for name in self._names])

    def _slow_links(self, problem: OperatorProblem) -> BoolArray:
        now, profiled = _message_s(problem), _message_s(self.online.base)
        slow: BoolArray = np.isfinite(profiled) & (now > SLOW_LINK * profiled)
        return slow

    def _faster_devices(self, devices: list[int]) -> list[str]:
        if not devices:
            return []
        now, faster = self._slowness(), list[str]()
        probed = self.online.observed.slowness
        for device, name in ((d, self._names[d]) for d in devices):
            change = now[device] / probed[name]  # not over the factor, which steps have shown
            if change <= FAST_AGAIN:
                self.online.add_probe(device, now[device], idle=True)
                faster.append(_described(name, 1.0 / change))
        return faster

    def _faster_links(self, links: list[tuple[int, int]], problem: OperatorProblem) -> list[str]:
        if not links:
            return []
        before, faster, names = _message_s(problem), [], problem.device_names
        for source, target, latency_s, per_byte in self.session.probe_links(links):
            self.online.add_link(source, target, latency_s, per_byte)
            times = before[source, target] / (latency_s + LARGE * per_byte)
            if times * FAST_LINK >= 1.0:
                faster.append(_described(f"{names[source]} -> {names[target]}", times))
        return faster

    def _slowness(self) -> list[float]:
        """How many times slower each device is than when it was first probed."""
        pairs = zip(self._names, self.session.probe_speeds(), strict=True)
        return [self.online.observed.slower(name, seconds) for name, seconds in pairs]

    @property
    def _names(self) -> tuple[str, ...]:
        return self.online.base.device_names

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._probed_s = time.perf_counter()
        self._took_s = self._probed_s - start


def _little(problem: OperatorProblem, plan: OperatorPlan) -> BoolArray:
    """Which devices compute for so short a part of a step that it does not show their factor."""
    seconds = problem.compute_s[np.arange(problem.n), plan.placement]
    loads = np.bincount(plan.placement, weights=seconds, minlength=problem.m)
    little: BoolArray = loads < LITTLE * judge(problem, plan).value
    return little


def _used(problem: OperatorProblem, plan: OperatorPlan) -> set[tuple[int, int]]:
    """Pairs of devices between which tensors travel."""
    sources = plan.placement[problem.consumed_from].tolist()
    targets = plan.placement[problem.consumers].tolist()
    return {(i, j) for i, j in zip(sources, targets, strict=True) if i != j}


def _message_s(problem: OperatorProblem) -> FloatArray:
    """Shape (m, m): what the large message of a probe takes."""
    return problem.latency_s + LARGE * problem.seconds_per_byte


def _described(name: str, times: float) -> str:
    return f"{name} is {times:.1f} times faster than when it was left"
