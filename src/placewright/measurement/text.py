"""Measurements as text: predicted and measured steps, speed-up, warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.report.text import joined, percent, plain_table, seconds

if TYPE_CHECKING:
    from placewright.measurement.measurement import Measurement


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
