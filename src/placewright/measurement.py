"""Measured runs: step times, baseline, speed-up, and comparison with eager PyTorch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import median, stdev
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from placewright.errors import CheckError
from placewright.io.arguments import SecondsOrUnknown, Unlimited, checked
from placewright.report.text import joined, percent, plain_table, seconds

if TYPE_CHECKING:
    from placewright.planning.contract import Progress
    from placewright.report.trace import Trace


Role = Literal["output", "parameter", "buffer", "input"]
"""An input is compared where the model changes it in place."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a placed run may be from eager PyTorch, and why.

    Attributes
    ----------
    relative
        Of the largest magnitude in a tensor. 0: every bit must be equal.
    update
        Added for a parameter, in its own unit and per step: what an optimizer makes of a
        gradient that is nothing but rounding.
    reason
        Why it is not smaller, or why it can be 0.
    steps
        Compared at most: a training step that starts from rounded parameters amplifies them.
    """

    relative: float = 0.0
    update: float = 0.0
    reason: str = ""
    steps: int | None = None

    def absolute(self, role: Role, largest: float, step: int) -> float:
        """Largest difference that is allowed in a tensor whose largest magnitude is `largest`."""
        return self.relative * largest + (self.update * step if role == "parameter" else 0.0)


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor after one step.

    Attributes
    ----------
    step
        Counted from 1.
    tensor
        Name of the output, or qualified name of the parameter or buffer.
    max_abs_error
        Largest absolute difference of an element; ``inf`` where a value is missing, not a number
        on one side only, or of another shape or type.
    tolerance
        The largest difference that would have passed.
    """

    step: int
    role: Role
    tensor: str
    max_abs_error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether it is within the tolerance."""
        return self.max_abs_error <= self.tolerance

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"passed": self.passed}

    def __str__(self) -> str:
        return (
            f"{self.role} {self.tensor!r} after step {self.step} differs by "
            f"{self.max_abs_error:g}, tolerance {self.tolerance:g}"
        )


@checked
@dataclass(frozen=True, slots=True)
class Check:
    """All that was compared.

    Attributes
    ----------
    steps
        Compared, each from the state that the step before it left.
    compared
        Tensors by role, in each step.
    max_abs_error
        Largest difference of any tensor in any step.
    first
        Of the first step in which a tensor is beyond its tolerance, the tensor that is furthest
        beyond; ``None`` if all are within.
    failed
        Tensors beyond their tolerance in that step, furthest first, at most `LISTED`.
    beyond
        How many there are.
    reference
        What the run was compared with.
    """

    steps: int
    tolerance: Tolerance
    compared: Mapping[str, int]
    max_abs_error: Unlimited
    failed: tuple[Difference, ...] = ()
    beyond: int = 0
    note: str = ""
    reference: str = "plain eager PyTorch"

    @classmethod
    @checked
    def of(
        cls,
        differences: Sequence[Difference],
        tolerance: Tolerance,
        reference: str,
        roles: Sequence[Role] = ("output",),
    ) -> Check:
        """Steps whose differences are all known, in the order of the steps.

        Parameters
        ----------
        roles
            Of the tensors that were compared, counted in the last step.
        """
        failed = [d for d in differences if not d.passed]
        first = [d for d in failed if d.step == failed[0].step]
        first.sort(key=lambda d: d.tolerance - d.max_abs_error)
        last = max(d.step for d in differences)
        counted = [d.role for d in differences if d.step == last]
        return cls(
            steps=last,
            tolerance=tolerance,
            compared={role: counted.count(role) for role in roles},
            max_abs_error=max(d.max_abs_error for d in differences),
            failed=tuple(first[:LISTED]),
            beyond=len(first),
            reference=reference,
        )

    @property
    def first(self) -> Difference | None:
        """See above."""
        return self.failed[0] if self.failed else None

    @property
    def passed(self) -> bool:
        """Whether every tensor was within its tolerance in every step."""
        return not self.failed

    def demand(self) -> None:
        """Raise if it failed.

        Raises
        ------
        CheckError
            Names the tensor, the step, the difference and the tolerance.
        """
        if self.first is None:
            return
        raise CheckError(
            f"the placed run differs from {self.reference}",
            where=f"{self.first.role} {self.first.tensor!r} after step {self.first.step}",
            by=f"by {self.first.max_abs_error:g}, tolerance {self.first.tolerance:g}: "
            f"{self.tolerance.reason}; {_counted(self.beyond, 'tensor')} beyond it in that step",
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data: what ``-f json`` prints as ``check``."""
        return {
            "passed": self.passed,
            "steps": self.steps,
            "compared": dict(self.compared),
            "max_abs_error": self.max_abs_error,
            "tolerance": self.tolerance.relative,
            "tolerance_update": self.tolerance.update,
            "reason": self.tolerance.reason,
            "first": None if self.first is None else self.first.as_json(),
            "beyond": self.beyond,
            "failed": [difference.as_json() for difference in self.failed],
            "note": self.note,
        }

    def __str__(self) -> str:
        what = f"{self.max_abs_error:g} ({self.amount})"
        note = f" ({self.note})" if self.note else ""
        reference = self.reference.removeprefix("plain ")
        return f"largest difference from {reference}: {what}; {self._verdict()}{note}"

    @property
    def amount(self) -> str:
        """How much was compared."""
        counted = (_counted(n, role) for role, n in self.compared.items() if n)
        return f"{', '.join(counted)} after each of {_counted(self.steps, 'step')}"

    def _verdict(self) -> str:
        allowed = self.tolerance
        if self.first is not None:
            more = f" ({self.beyond} tensors are beyond theirs)" if self.beyond > 1 else ""
            return f"FAILED: {self.first}{more}; promised: {allowed.reason}"
        bound = f"{allowed.relative:g} of a tensor's largest value" if allowed.relative else "0"
        return f"passed, tolerance {bound}: {allowed.reason}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


LISTED = 8
"""Tensors that a failed check names."""


Array = np.ndarray[Any, Any]


def distance(made: Array | None, wanted: Array) -> tuple[float, float]:
    """Largest absolute difference, and the largest finite magnitude of `wanted`.

    The difference is ``inf`` where `made` is missing, of another shape or type, or not finite in
    another way. What is not finite has no magnitude that a tolerance could be a share of. Texts
    are equal, or infinitely far apart.
    """
    if wanted.dtype.kind in "OSU":
        return 0.0 if made is not None and np.array_equal(made, wanted) else math.inf, 0.0
    kind = np.complex128 if np.iscomplexobj(wanted) else np.float64
    b = wanted.astype(kind)
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    if made is None or made.shape != wanted.shape or made.dtype != wanted.dtype:
        return math.inf, largest
    a = made.astype(kind)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.abs(a[~same] - b[~same])
    return float(np.where(np.isfinite(apart), apart, np.inf).max(initial=0.0)), largest


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


T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantile 0.975 of Student's t for 1, 2, ... degrees of freedom."""


def half_interval(values: Sequence[float]) -> float:
    """Half the 95 % interval of the mean of two values or more, by Student's t."""
    return quantile_95(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def quantile_95(freedom: int) -> float:
    """Of Student's t; that of nine degrees of freedom for more."""
    return T_95[min(freedom, len(T_95)) - 1]


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How many times as fast as the baseline a plan is.

    Attributes
    ----------
    ratio
        Step of the baseline over step of the plan.
    low, high
        95 % interval, ``nan`` where there was one round only.
    rounds
        Pairs of blocks of steps, one block of each right after the other.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def decided(self) -> bool:
        """Whether the interval leaves 1 out: the difference is more than noise."""
        return self.low > 1.0 or self.high < 1.0

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"decided": self.decided}


def speed_up(plan: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]]) -> SpeedUp:
    """Compare step times that were measured in turns.

    Every round gives the ratio of its two medians; the answer is their geometric mean, with the
    interval of Student's t for the logarithms. What a machine does to both blocks of a round
    cancels.

    `plan`, `baseline`: seconds of every step, by round.
    """
    pairs = zip(plan, baseline, strict=True)
    logs = [math.log(median(other) / median(own)) for own, other in pairs]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return SpeedUp(math.exp(mean), math.nan, math.nan, len(logs))
    half = half_interval(logs)
    return SpeedUp(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


ROUNDS = 5
"""Blocks of steps of each plan, in turns."""

TimedSteps = Callable[[int, int], list[float]]
"""Executes steps that do not count, then measured ones; seconds of the latter."""


def in_turns(
    plans: Sequence[TimedSteps], steps: int, warmup: int, bound: float, progress: Progress
) -> list[list[list[float]]]:
    """Seconds of steps by plan and round: a b c, c b a, ...; blocks begin with a warm-up.

    `bound`: predicted seconds of the first plan, which `progress` shows beside its median.
    """
    times: list[list[list[float]]] = [[] for _ in plans]
    rounds, began = min(steps, ROUNDS), time.perf_counter()
    for turn in range(rounds):
        size = steps // rounds + (turn < steps % rounds)
        forth = range(len(plans))
        for k in forth if turn % 2 == 0 else reversed(forth):
            times[k].append(plans[k](warmup, size))
        progress(
            what=f"round {turn + 1} of {rounds}",
            value=median([s for block in times[0] for s in block]),
            bound=bound,
            elapsed_s=time.perf_counter() - began,
        )
    return times


def measurement_table(measurement: Measurement) -> str:
    """Predicted and measured seconds of a plan and of what was measured beside it."""
    rows = [_measured_row("plan", measurement)]
    baseline = measurement.baseline
    if baseline is not None and baseline.measurement is not None:
        rows.append(_measured_row(f"{baseline.name} alone", baseline.measurement))
    return joined(
        f"{measurement.engine}; emulated: {measurement.emulated or 'nothing'}",
        plain_table(("", "predicted", "measured", "error"), rows, " rrr"),
        "" if baseline is None else speed_up_text(measurement),
        *load_warnings(measurement),
        "" if measurement.check is None else str(measurement.check),
    )


def load_warnings(measurement: Measurement) -> list[str]:
    """A warning where other processes kept the machine busy meanwhile."""
    machine = measurement.machine
    if machine is None or not machine.disturbed:
        return []
    return [f"warning: {machine}: measure again when it is idle"]


def speed_up_text(measurement: Measurement) -> str:
    """How a plan compares with the best single device: measured, with the interval."""
    baseline, found = measurement.baseline, measurement.speed_up
    if baseline is None:
        return "no single device fits the model"
    if found is None:
        return f"the plan is {baseline.name} alone: splitting is predicted not to pay"
    single = f"{baseline.name}, the best single device that fits"
    times = f"{found.ratio:.2f} times as fast"
    interval = (
        f"95 % interval {found.low:.2f} to {found.high:.2f} from {found.rounds} rounds in turns"
        if found.rounds > 1
        else "one round, so without an interval"
    )
    predicted = measurement.predicted_speed_up
    wanted = "" if predicted is None else f"; predicted {predicted:.2f}"
    if found.rounds > 1 and not found.decided:
        return f"measured: no difference beyond noise from {single}: {times} ({interval}{wanted})"
    slower = "slower, " if found.ratio < 1 else ""
    return f"measured: {slower}{times} as {single} ({interval}{wanted})"


def _measured_row(name: str, taken: Measurement) -> tuple[str, ...]:
    error = taken.predicted_s / taken.measured_s - 1
    return name, seconds(taken.predicted_s), seconds(taken.measured_s), percent(error)
