"""Measurement of a run: step times, baseline, and the load of the machine meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from placewright.io.arguments import SecondsOrUnknown, checked
from placewright.measurement.check import Check
from placewright.measurement.speed_up import SpeedUp, speed_up

if TYPE_CHECKING:
    from placewright.report.trace import Trace

BUSY_CPUS = 0.25
"""CPUs that may be busy beside a measurement: an editor, a shell."""


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """What a run really took.

    Attributes
    ----------
    step_s
        Wall seconds of each measured step, after warm-up.
    predicted_s
        The judge's value.
    trace
        The median step, in the format of the judge's trace.
    engine
        What moved the tensors and ran the operators.
    emulated
        What was emulated, empty if nothing was.
    check
        The comparison with plain eager PyTorch, ``None`` if there was none.
    rounds
        How many of the steps belong to each round, where plans were measured in turns.
    baseline
        What was measured beside it, ``None`` if nothing was.
    machine
        What other processes did meanwhile, ``None`` if unknown.
    """

    step_s: tuple[float, ...]
    predicted_s: SecondsOrUnknown
    trace: Trace | None
    engine: str
    emulated: str = ""
    check: Check | None = None
    rounds: tuple[int, ...] = ()
    baseline: Baseline | None = None
    machine: MachineLoad | None = None

    @classmethod
    @checked
    def of_rounds(
        cls,
        rounds: Sequence[Sequence[float]],
        predicted_s: SecondsOrUnknown,
        engine: str,
        emulated: str = "",
    ) -> Self:
        """Steps measured in rounds, each in turns with other plans: seconds by round."""
        return cls(
            step_s=tuple(seconds for times in rounds for seconds in times),
            predicted_s=predicted_s,
            trace=None,
            engine=engine,
            emulated=emulated,
            rounds=tuple(map(len, rounds)),
        )

    @property
    def speed_up(self) -> SpeedUp | None:
        """Against the baseline; ``None`` without one, or where the plan is the baseline."""
        if self.baseline is None or self.baseline.measurement is None:
            return None
        return speed_up(self.by_round(), self.baseline.measurement.by_round())

    @property
    def predicted_speed_up(self) -> float | None:
        """The value by the judge."""
        if self.baseline is None or self.baseline.measurement is None or not self.predicted_s:
            return None
        return self.baseline.measurement.predicted_s / self.predicted_s

    def by_round(self) -> tuple[tuple[float, ...], ...]:
        """Step times, one tuple per round; one round where nothing is known of them."""
        ends = list(accumulate(self.rounds or (len(self.step_s),)))
        starts = [0, *ends[:-1]]
        return tuple(self.step_s[a:b] for a, b in zip(starts, ends, strict=True))

    def __repr__(self) -> str:
        from placewright.measurement.text import measurement_table

        return measurement_table(self)

    @property
    def max_abs_error(self) -> float | None:
        """Largest difference from plain eager PyTorch, ``None`` if not checked."""
        return None if self.check is None else self.check.max_abs_error

    @property
    def measured_s(self) -> float:
        """Median step."""
        return median(self.step_s)


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """The best single device that fits, measured beside a plan.

    `measurement`: ``None`` where the plan is this device alone.
    """

    name: str
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """What other processes did on the machine while steps were measured.

    Attributes
    ----------
    host
        The machine on which they did most.
    cpus
        That this run may use there.
    cores
        That its devices ask for there.
    other_cpus
        CPUs that others kept busy, on average; what a hypervisor took away counts too.
    peak_cpus
        The same in the worst round.
    """

    host: str
    cpus: int
    cores: int
    other_cpus: float
    peak_cpus: float

    @property
    def room_cpus(self) -> float:
        """CPUs that others may keep busy without taking any from this run."""
        return max(BUSY_CPUS, self.cpus - self.cores - BUSY_CPUS)

    @property
    def disturbed(self) -> bool:
        """Whether what was measured is not to be relied on."""
        return self.other_cpus > self.room_cpus or self.peak_cpus > 2.0 * self.room_cpus

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "host": self.host,
            "cpus": self.cpus,
            "other_cpus": self.other_cpus,
            "peak_cpus": self.peak_cpus,
            "disturbed": self.disturbed,
        }

    def __str__(self) -> str:
        return (
            f"other processes kept {self.other_cpus:.1f} of {self.cpus} CPUs of {self.host} busy "
            f"during the measurement, {self.peak_cpus:.1f} at worst"
        )
