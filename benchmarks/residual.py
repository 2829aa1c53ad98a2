"""Errors of predicted steps before and after a residual model, on models that it never saw.

    python benchmarks/residual.py [--on edge-duo] [--steps 60] [--models mlp cnn] [--runs runs.json]

The plans of `small_steps.py` are measured: two of each of twelve small models. Every model's runs
are then corrected by what was learned from the other models' runs; the strength of the regression
is chosen without the model, too. `--runs FILE` keeps the runs after every model; models that it has
are not measured again, and with `--minutes M` no other is begun after so many.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from placewright import Cluster, ProfileTable, load_cluster
from placewright.operators.residual import Corrected, MeasuredRun, fit, held_out, measured_run
from placewright.operators.residual_files import read_runs, write_runs
from small_steps import MODELS, measured


def collected(
    names: Sequence[str], cluster: Cluster, steps: int, kept: Path | None, minutes: float
) -> list[MeasuredRun]:
    """Runs of the plans of `small_steps.py`: those that were kept, and of each model without."""
    table, end_s = ProfileTable(), time.monotonic() + 60 * minutes
    found = list(read_runs(kept)) if kept is not None and kept.exists() else []
    known = {run.model for run in found}
    for name in (name for name in names if name not in known):
        if time.monotonic() > end_s:
            print(f"{name} is not measured yet: run the same command again.")
            continue
        for result, taken in measured(name, cluster, steps, table):
            found.append(measured_run(result.judgement, taken.measured_s, name))
        if kept is not None:
            write_runs(found, kept)
    return found


def error(seconds: float, run: MeasuredRun) -> float:
    """Signed, relative to what was measured."""
    return seconds / run.measured_s - 1


def summary(runs: Sequence[MeasuredRun], held: Sequence[Corrected]) -> str:
    """Errors before and after, how many intervals held, and what a fit to all runs chooses."""
    before = np.abs([error(run.predicted_s, run) for run in runs])
    after = np.abs([error(c.seconds, run) for c, run in zip(held, runs, strict=True)])
    inside = [c.low_s <= run.measured_s <= c.high_s for c, run in zip(held, runs, strict=True)]
    lines = [
        f"{kind}: median |error| {np.median(errors):.1%}, mean {errors.mean():.1%}, largest "
        f"{errors.max():.1%}"
        for kind, errors in (("judge", before), ("held out, corrected", after))
    ]
    chosen = fit(runs).strength
    return "\n".join(
        [
            *lines,
            f"median error after / before: {np.median(after) / np.median(before):.2f}; 95 % "
            f"intervals that held: {sum(inside)} of {len(runs)}; strength for all runs: {chosen}",
        ]
    )


def main() -> None:
    """Print the table and its summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--on", default="edge-duo")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--minutes", type=float, default=1e6)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    cluster = load_cluster(asked.on)
    runs = collected(asked.models, cluster, asked.steps, asked.runs, asked.minutes)
    if len({run.model for run in runs}) < 3:
        print("Runs of three models are needed to hold one out.")
        return
    held = held_out(runs)
    print("| model | predicted ms | corrected ms | measured ms | before | after |")
    print("|---|---|---|---|---|---|")
    for run, found in zip(runs, held, strict=True):
        print(
            f"| {run.model} | {run.predicted_s * 1e3:.2f} | {found.seconds * 1e3:.2f} | "
            f"{run.measured_s * 1e3:.2f} | {error(run.predicted_s, run):+.1%} | "
            f"{error(found.seconds, run):+.1%} |"
        )
    print(f"\n{summary(runs, held)}")


if __name__ == "__main__":
    main()
