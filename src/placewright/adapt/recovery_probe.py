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

from placewright.adapt.online_profile import ENOUGH, OnlineProfile
from placewright.numerics.arrays import FloatArray
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.runtime.probe import LARGE
from placewright.runtime.session import Session

LITTLE = 2 * ENOUGH
"""Share of a step under which a device is probed; twice what the steps need to show its speed."""

SLOW, SLOW_LINK = 1.5, 3.0
"""What takes so many times longer than profiled is looked after when it is left alone. Busy cores
make a link's round trips twice as long, which is no loss of the link's."""

FAST_AGAIN, FAST_LINK = 0.75, 0.5
"""A probe over what was known: what noise does not do."""


@dataclass(slots=True)
class RecoveryProbe:
    """Probes one session for its watch.

    Attributes
    ----------
    share
        Of the time, that `recovered` may take.
    """

    session: Session
    watch: OnlineProfile
    share: float
    _took_s: float = 0.0
    _looked_s: float = -math.inf

    def baseline(self) -> None:
        """How fast the devices are when a run first uses them."""
        known = self.watch.observed.first_probe_s
        if not known.keys() >= set(self.watch.base.device_names):
            self._slowness()

    def all_round(self, plan: OperatorPlan) -> None:
        """Probe every device, which says most of those without work, and every link."""
        with self._timed():
            working = set(plan.placement.tolist())
            for device, slowness in enumerate(self._slowness()):
                self.watch.saw_probe(device, slowness, idle=device not in working)
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
        probed = self.watch.observed.slowness
        return np.array([probed.get(name, 1.0) > SLOW for name in self._names])

    def _slow_links(self, problem: OperatorProblem) -> np.ndarray:
        now, profiled = _message_s(problem), _message_s(self.watch.base)
        return np.isfinite(profiled) & (now > SLOW_LINK * profiled)

    def _faster_devices(self, devices: list[int]) -> list[str]:
        if not devices:
            return []
        now, faster = self._slowness(), list[str]()
        probed = self.watch.observed.slowness
        for device, name in ((d, self._names[d]) for d in devices):
            change = now[device] / probed[name]  # not over the factor, which steps have shown
            if change <= FAST_AGAIN:
                self.watch.saw_probe(device, now[device], idle=True)
                faster.append(_told(name, 1.0 / change))
        return faster

    def _faster_links(self, links: list[tuple[int, int]], problem: OperatorProblem) -> list[str]:
        if not links:
            return []
        before, faster, names = _message_s(problem), [], problem.device_names
        for source, target, latency_s, per_byte in self.session.probe_links(links):
            self.watch.saw_link(source, target, latency_s, per_byte)
            times = before[source, target] / (latency_s + LARGE * per_byte)
            if times * FAST_LINK >= 1.0:
                faster.append(_told(f"{names[source]} -> {names[target]}", times))
        return faster

    def _slowness(self) -> list[float]:
        """How many times slower each device is than when it was first probed."""
        pairs = zip(self._names, self.session.probe_speeds(), strict=True)
        return [self.watch.observed.slower(name, seconds) for name, seconds in pairs]

    @property
    def _names(self) -> tuple[str, ...]:
        return self.watch.base.device_names

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
