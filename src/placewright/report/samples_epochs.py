"""A run of wing 3 that plans again, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placewright.report.text import percent, plain_table, seconds
from placewright.samples.replanning import Step
from placewright.samples.run import EMULATED, REAL


def epochs_json(steps: Sequence[Step], *, real: bool) -> dict[str, Any]:
    """Every epoch as data."""
    return {
        "engine": "torch.distributed gloo, one process per node",
        "emulated": emulated(real=real),
        "measured_s": total_s(steps),
        "epochs": [
            {
                "epoch": k,
                "measured_s": step.epoch.seconds,
                "planned": step.planned,
                "unplanned": step.unplanned,
                "moved_samples": step.moved,
                "move_s": step.move_s,
                "left": list(step.left),
                "held": dict(step.held),
                "lost_samples": step.lost,
                "loss": step.epoch.loss,
                "test_loss": step.epoch.test_loss,
                "accuracy": step.epoch.accuracy,
            }
            for k, step in enumerate(steps, 1)
        ],
    }


def epochs_table(steps: Sequence[Step], *, real: bool) -> str:
    """One line each, and the sum."""
    header = (
        "epoch",
        "measured",
        "moved before",
        "moving",
        "left",
        "lost",
        "test loss",
        "accuracy",
    )
    rows = [
        (
            str(k),
            seconds(step.epoch.seconds),
            _planned(step),
            seconds(step.move_s) if step.moved else "",
            ", ".join(step.left),
            f"{step.lost} samples" if step.lost else "",
            f"{step.epoch.test_loss:.3f}",
            percent(step.epoch.accuracy),
        )
        for k, step in enumerate(steps, 1)
    ]
    lines = [
        f"torch.distributed gloo, one process per node; emulated: {emulated(real=real)}",
        plain_table(header, rows, "rrrrlrrr"),
        f"{seconds(total_s(steps))} in all; processes start anew for every epoch, not counted",
    ]
    return "\n".join(lines)


def _planned(step: Step) -> str:
    if step.unplanned:
        return "no plan"
    return f"{step.moved} samples" if step.planned else ""


def total_s(steps: Sequence[Step]) -> float:
    """Moving and training of all epochs."""
    return sum(step.epoch.seconds + step.move_s for step in steps)


def emulated(*, real: bool) -> str:
    """What was, in words."""
    return REAL if real else EMULATED
