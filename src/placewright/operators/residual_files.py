"""Files of measured runs, from which the residual model is fitted: JSON or YAML, packed or not.

A file holds the runs and not the weights: runs can be added, and the fit takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from placewright.errors import InputError
from placewright.io.boundary import FileModel, placed, validate
from placewright.io.stored import locked, read_data, write_data
from placewright.operators.residual import MeasuredRun, ResidualModel, fit
from placewright.operators.residual_features import FEATURES, FEATURES_VERSION

Seconds = Annotated[float, Field(ge=1e-15, le=1e15)]
Number = Annotated[float, Field(ge=-1e15, le=1e15)]
"""Bounds that keep squares finite; no run comes near them."""

Part = Annotated[float, Field(gt=0, le=1e15)]
"""Share of the prediction that work on the critical path or an overhead takes."""


class MeasuredRunEntry(FileModel):
    """One run; `features` in the file's order of names."""

    model: str
    devices: list[str]
    features: Annotated[list[tuple[str, str, Number, Number, Part]], Field(min_length=1)]
    predicted_s: Seconds
    measured_s: Seconds


class MeasuredRunsFile(FileModel):
    """Names and version of the features, and runs."""

    schema_version: Literal[1] = 1
    features_version: int
    features: list[str]
    measured_runs: list[MeasuredRunEntry]


def write_runs(runs: Sequence[MeasuredRun], path: str | Path) -> Path:
    """Write runs that `read_runs` reads back equal, atomically."""
    entries = [
        {
            "model": run.model,
            "devices": list(run.devices),
            "features": list(run.features),
            "predicted_s": run.predicted_s,
            "measured_s": run.measured_s,
        }
        for run in runs
    ]
    head = {"schema_version": 1, "features_version": FEATURES_VERSION, "features": list(FEATURES)}
    return write_data({**head, "measured_runs": entries}, path)


def read_runs(path: str | Path) -> tuple[MeasuredRun, ...]:
    """Read a file of measured runs.

    Raises `InputError`: no file, a damaged one, one with other features or another version of them.
    """
    where = str(path)
    data, text = read_data(path)
    found = validate(MeasuredRunsFile, data, where=where, text=text)
    _check_features(found, where)
    return tuple(
        MeasuredRun(
            run.model, tuple(run.devices), tuple(run.features), run.predicted_s, run.measured_s
        )
        for run in found.measured_runs
    )


def runs_to_extend(path: str | Path) -> tuple[MeasuredRun, ...]:
    """The runs of a file that another one is added to; none if it is empty or missing.

    Raises
    ------
    InputError
        As `read_runs`.
    """
    file = Path(path)
    return read_runs(file) if file.exists() and file.stat().st_size else ()


def add_run(run: MeasuredRun, path: str | Path) -> int:
    """Add a run to a file, which is made if it does not exist; how many it has then.

    Processes that add to one file at the same time take turns.
    """
    with locked(path):
        runs = (*runs_to_extend(path), run)
        write_runs(runs, path)
    return len(runs)


def read_residual(path: str | Path) -> ResidualModel:
    """The model that is fitted to the runs of a file.

    Raises `InputError` as `read_runs`, or it has runs of fewer than two models.
    """
    runs = read_runs(path)
    try:
        return fit(runs)
    except InputError as error:
        raise placed(error, str(path)) from None


def _check_features(found: MeasuredRunsFile, where: str) -> None:
    hint = "measure again with `placewright operators run ... --record FILE` into a new file"
    if found.features_version != FEATURES_VERSION:
        raise InputError(
            "has measured runs with another version of the features",
            where=where,
            by=f"version {found.features_version}, this is {FEATURES_VERSION}",
            hint=hint,
        )
    if found.features != list(FEATURES):
        unknown = [name for name in found.features if name not in FEATURES]
        missing = [name for name in FEATURES if name not in found.features]
        unlike = [f"unknown: {', '.join(unknown[:3])}"] * bool(unknown)
        unlike += [f"missing: {', '.join(missing[:3])}"] * bool(missing)
        raise InputError(
            "has measured runs with other features",
            where=where,
            by="; ".join(unlike) or "in another order",
            hint=hint,
        )
