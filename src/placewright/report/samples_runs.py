"""Runs of wing 3 side by side: predicted and measured, and seconds to the same loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placewright.report.text import percent, plain_table, seconds
from placewright.samples.run import EMULATED, REAL, SampleRun


def runs_json(runs: Sequence[SampleRun]) -> dict[str, Any]:
    """All runs as data; the loss to reach is the one that the plan and not moving both reach."""
    loss = loss_to_reach(runs)
    return {
        "engine": "torch.distributed gloo, one process per node",
        "emulated": emulated(runs),
        "speed": runs[0].speed,
        "loss_to_reach": loss,
        "runs": [run.as_json(loss) for run in runs],
    }


def runs_table(runs: Sequence[SampleRun]) -> str:
    """One line each, the plan first."""
    loss = loss_to_reach(runs)
    rows = [_row(run, loss) for run in runs]
    header = (
        "",
        "predicted",
        "measured",
        "error",
        "moving",
        "to same loss",
        "best loss",
        "accuracy",
    )
    lines = [
        f"torch.distributed gloo, one process per node; emulated: {emulated(runs)}",
        plain_table(header, rows, " rrrrrrr"),
    ]
    still = next((run for run in runs if run.name == "none"), None)
    if still is not None:
        times = (still.seconds_to(loss) or 0.0) / (runs[0].seconds_to(loss) or float("inf"))
        lines.append(f"{times:.2f} times as fast to the same loss as without moving")
    return "\n".join(lines)


def loss_to_reach(runs: Sequence[SampleRun]) -> float:
    """On the test images. Peers that train otherwise may never reach it."""
    ours = [run for run in (runs[0], *runs) if run.name == "none" or run is runs[0]]
    return max(run.best_loss for run in ours)


def emulated(runs: Sequence[SampleRun]) -> str:
    """What was, in words."""
    return REAL if runs[0].real else EMULATED


def _row(run: SampleRun, loss: float) -> tuple[str, ...]:
    predicted, reached = run.predicted_s, run.seconds_to(loss)
    last = run.trained.epochs[-1]
    return (
        run.name,
        "-" if predicted is None else seconds(predicted),
        seconds(run.measured_s),
        "-" if predicted is None else percent(predicted / run.measured_s - 1),
        seconds(run.move_s),
        "-" if reached is None else seconds(reached),
        f"{run.best_loss:.3f}",
        percent(last.accuracy),
    )
