"""Online profile: what operators, devices and links really take, from sampled steps.

Each sample gives every busy device a factor (its seconds over the profiled ones) and every operator
its own deviation from its device's factor. Factors change fast and for all operators of a device,
deviations slowly: that is how the loss of half a device's CPU is told from a kernel that was
profiled wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from placewright.adapt.device_factors import DeviceFactor, device_factor, usual_factor
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.problem import OperatorProblem
from placewright.runtime.step_record import StepRecord

RECENT = 3
"""Samples that a device's factor is the median of."""

ENOUGH = 0.05
"""Share of a step that a device must compute for its operators to show its factor."""

SLOWLY = 0.2
"""Weight of a new sample in an operator's deviation."""


@dataclass(slots=True)
class Observed:
    """Measurements of a run of its devices and links, by name; they outlive the workers.

    Attributes
    ----------
    factors
        By device, how many times slower than profiled it was in the last samples; only of those
        whose steps show it.
    usual
        What `factors` over `slowness` were before anything changed: the error of the profile.
    links
        By source and target, latency in seconds and seconds per byte.
    first_probe_s
        By device, what its first probe took: its speed when it was profiled.
    slowness
        By device, how many times slower than at first it was when all were last probed.
    deviation
        Shape (n,): every operator's own factor; empty before the first sample.
    """

    factors: dict[str, list[float]] = field(default_factory=dict)
    usual: list[float] = field(default_factory=list)
    links: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    first_probe_s: dict[str, float] = field(default_factory=dict)
    slowness: dict[str, float] = field(default_factory=dict)
    deviation: FloatArray = field(default_factory=lambda: np.empty(0))

    def slower(self, device: str, probe_s: float) -> float:
        """How many times slower a device is than when it was first probed."""
        first_s = self.first_probe_s.setdefault(device, probe_s)
        return device_factor([[probe_s]], first_s).value


@dataclass(slots=True)
class OnlineProfile:
    """Refreshes a problem's costs from what was measured.

    `base`: the problem as it was profiled, for the devices that take part.
    `observed`: what was measured so far, also under workers before these.
    """

    base: OperatorProblem
    observed: Observed = field(default_factory=Observed)

    def __post_init__(self) -> None:
        if not len(self.observed.deviation):
            self.observed.deviation = np.ones(self.base.n)

    def add_steps(self, records: Sequence[StepRecord]) -> None:
        """Take in watched steps."""
        for record in records:
            self._add(record)

    def add_probe(self, device: int, slowness: float, *, idle: bool) -> None:
        """Take in how many times slower a device is than at first.

        Of one that is `idle` nothing else is known: older samples of it no longer count.
        """
        self.observed.slowness[self._names[device]] = slowness
        if idle:
            self.observed.factors.pop(self._names[device], None)

    def add_calm(self) -> None:
        """Take in that nothing has changed so far: the factors are the profile's own error."""
        if not self.knows_usual:
            factors = self.observed.factors.items()
            known = [(name, device_factor([samples])) for name, samples in factors]
            # Without what the probes have seen of the devices: what is left is the profile's own
            # error.
            usual = usual_factor([DeviceFactor(f.value / self._slowness(n)) for n, f in known])
            self.observed.usual.append(usual)

    @property
    def knows_usual(self) -> bool:
        """Whether calm steps were sampled often enough."""
        return len(self.observed.usual) >= RECENT

    def add_link(self, source: int, target: int, latency_s: float, per_byte: float) -> None:
        """Take in a measured link."""
        self.observed.links[self._names[source], self._names[target]] = (latency_s, per_byte)

    def forget(self) -> None:
        """Drop the factors but for the last samples: something has changed."""
        factors = self.observed.factors
        factors.update({name: factors[name][-1:] for name in self._names if name in factors})

    def factors(self) -> FloatArray:
        """Shape (m,): how many times slower than profiled each device is.

        The profile is assumed to be as wrong about devices without samples as about the others.
        """
        seen, usual = self.observed.factors, float(np.median(self.observed.usual or [1.0]))
        return np.array(
            [
                device_factor([seen[n]]).value if n in seen else usual * self._slowness(n)
                for n in self._names
            ]
        )

    def problem(self) -> OperatorProblem:
        """The base problem at the measured costs."""
        deviation = self.observed.deviation
        compute = self.base.compute_s * self.factors()[None, :] * deviation[:, None]
        latency_s, per_byte = self.base.latency_s.copy(), self.base.seconds_per_byte.copy()
        at = {name: device for device, name in enumerate(self._names)}
        for (source, target), link in self.observed.links.items():
            if source in at and target in at:
                pair = at[source], at[target]
                latency_s[pair], per_byte[pair] = link
        return replace(self.base, compute_s=compute, latency_s=latency_s, seconds_per_byte=per_byte)

    @property
    def _names(self) -> tuple[str, ...]:
        return self.base.device_names

    def _slowness(self, name: str) -> float:
        return self.observed.slowness.get(name, 1.0)

    def _add(self, record: StepRecord) -> None:
        for device, log in enumerate(record.logs):
            if not log.operators:
                continue
            operators = np.asarray(log.operators)
            measured_s = log.seconds
            predicted_s = self.base.compute_s[operators, device]
            # With the deviations known so far: the device's factor is what is left for all of its
            # operators.
            predicted_s = predicted_s * self.observed.deviation[operators]
            total_s = float(predicted_s.sum())
            if measured_s.sum() < ENOUGH * record.duration_s or total_s <= 0:
                continue
            factor = device_factor([[measured_s.sum()]], total_s).value
            name = self._names[device]
            samples = [*self.observed.factors.get(name, []), factor]
            self.observed.factors[name] = samples[-RECENT:]
            self._deviate(operators, measured_s, predicted_s * factor)

    def _deviate(
        self, operators: IntArray, measured_s: FloatArray, predicted_s: FloatArray
    ) -> None:
        """Move operators' deviations towards the sample; short operators are all noise."""
        long = predicted_s > 0.002 * predicted_s.sum()
        # One disturbed sample may move an operator by 2 to the power of `SLOWLY` at most, 15 %.
        ratio = np.clip(measured_s[long] / predicted_s[long], 0.5, 2.0)
        self.observed.deviation[operators[long]] *= ratio**SLOWLY
