"""The online profile: what operators, devices and links really take, from sampled steps.

Each sample gives every busy device a factor (its seconds over what the profile had said) and
every operator its own deviation from its device's factor. Factors change fast and for all
operators of a device, deviations slowly: that is how half a device's CPU going away is told from
a kernel that the profile had measured wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from placewright.adapt.observed import Observed
from placewright.numerics.arrays import FloatArray
from placewright.operators.problem import OperatorProblem
from placewright.runtime.step_record import StepRecord

RECENT = 3
"""Samples that a device's factor is the median of."""

ENOUGH = 0.05
"""Share of a step that a device must be busy for its operators to say how fast it is."""

SLOWLY = 0.2
"""Weight of a new sample in an operator's deviation."""


@dataclass(slots=True)
class OnlineProfile:
    """Refreshes a problem's costs from what was seen.

    Attributes
    ----------
    base
        The problem as it was profiled, for the devices that take part.
    observed
        What was seen so far, also under workers before these.
    """

    base: OperatorProblem
    observed: Observed = field(default_factory=Observed)

    def __post_init__(self) -> None:
        if not len(self.observed.deviation):
            self.observed.deviation = np.ones(self.base.n)

    def saw_steps(self, records: Sequence[StepRecord]) -> None:
        """Take in watched steps."""
        for record in records:
            self._saw(record)

    def saw_probe(self, device: int, slowness: float, *, idle: bool) -> None:
        """Take in how many times slower a device is than at first.

        Of one that is `idle` nothing else is known: older samples of it no longer count.
        """
        self.observed.slowness[self._names[device]] = slowness
        if idle:
            self.observed.factors.pop(self._names[device], None)

    def saw_calm(self) -> None:
        """Take in that nothing has changed up to now: what is seen is the profile's own error."""
        if not self.knows_usual:
            ratios = [np.median(f) / self._slowness(n) for n, f in self.observed.factors.items()]
            self.observed.usual.append(float(np.median(ratios)) if ratios else 1.0)

    @property
    def knows_usual(self) -> bool:
        """Whether calm steps were seen often enough."""
        return len(self.observed.usual) >= RECENT

    def saw_link(self, source: int, target: int, latency_s: float, per_byte: float) -> None:
        """Take in a measured link."""
        self.observed.links[self._names[source], self._names[target]] = (latency_s, per_byte)

    def forget(self) -> None:
        """Drop the factors: something has changed, what was seen before no longer counts."""
        factors = self.observed.factors
        factors.update({name: factors[name][-1:] for name in self._names if name in factors})

    def factors(self) -> FloatArray:
        """Shape (m,): how many times slower than profiled each device is.

        The profile is taken to be as wrong about those that show no steps as about the others.
        """
        seen, usual = self.observed.factors, float(np.median(self.observed.usual or [1.0]))
        return np.array([np.median(seen.get(n, [usual * self._slowness(n)])) for n in self._names])

    def problem(self) -> OperatorProblem:
        """The base problem at the costs that were seen."""
        deviation = self.observed.deviation
        compute = self.base.compute_s * self.factors()[None, :] * deviation[:, None]
        latency_s, per_byte = self.base.latency_s.copy(), self.base.seconds_per_byte.copy()
        at = {name: device for device, name in enumerate(self._names)}
        for (source, target), line in self.observed.links.items():
            if source in at and target in at:
                pair = at[source], at[target]
                latency_s[pair], per_byte[pair] = line
        return replace(self.base, compute_s=compute, latency_s=latency_s, seconds_per_byte=per_byte)

    @property
    def _names(self) -> tuple[str, ...]:
        return self.base.device_names

    def _slowness(self, name: str) -> float:
        return self.observed.slowness.get(name, 1.0)

    def _saw(self, record: StepRecord) -> None:
        for device, log in enumerate(record.logs):
            if not log.operators:
                continue
            operators = np.asarray(log.operators)
            seen = log.seconds
            said = self.base.compute_s[operators, device] * self.observed.deviation[operators]
            if seen.sum() < ENOUGH * record.duration_s or said.sum() <= 0:
                continue
            factor = float(seen.sum() / said.sum())
            self._note(device, factor)
            self._deviate(operators, seen, said * factor)

    def _note(self, device: int, factor: float) -> None:
        name = self._names[device]
        self.observed.factors[name] = [*self.observed.factors.get(name, []), factor][-RECENT:]

    def _deviate(self, operators: np.ndarray, seen: FloatArray, said: FloatArray) -> None:
        """Move operators towards what was seen, the long ones: short ones are all noise."""
        long = said > 0.002 * said.sum()
        ratio = np.clip(seen[long] / said[long], 0.5, 2.0)
        self.observed.deviation[operators[long]] *= ratio**SLOWLY
