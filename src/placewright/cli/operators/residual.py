"""operators simulate --residual: the judge's value, and what measured runs make of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli.answer import print_result
from placewright.cli.console import Console
from placewright.cli.options import PlanFile, ReportOption, TraceOption
from placewright.io.output import output_file

if TYPE_CHECKING:
    from placewright.measurement.measurement import Measurement
    from placewright.planning.result import Result
    from placewright.planning.wing import Loaded

ResidualOption = Annotated[
    Path | None,
    typer.Option(
        "--residual",
        metavar="RUNS",
        help="A file of measured runs (`operators run --record`): their correction of the judge's "
        "seconds, beside them.",
    ),
]
RecordOption = Annotated[
    Path | None,
    typer.Option(
        "--record",
        metavar="RUNS",
        callback=output_file,
        help="Add this run to a file of measured runs, for `operators simulate --residual`.",
    ),
]


def simulate(
    console: Console,
    load: Callable[[], Loaded],
    plan: PlanFile,
    *,
    residual: ResidualOption = None,
    report: ReportOption = None,
    trace: TraceOption = None,
) -> None:
    """Simulate a saved plan by the judge: value, timeline, limits. Exit 3 if it does not fit."""
    from placewright.cli import generic_verbs

    if residual is None:
        generic_verbs.simulate(console, load, plan, report=report, trace=trace)
        return
    from placewright.operators.residual_files import read_residual
    from placewright.planning.fixed_plan import judged_plan

    model, loaded = read_residual(residual), load()
    result = judged_plan(loaded.problem, plan)
    corrected = model.corrected(result.judgement)
    print_result(
        console,
        result,
        report=report,
        trace=trace,
        graph=loaded.graph,
        table=lambda: f"{result!r}\n{corrected}",
        more={"corrected": corrected.as_json()},
    )


def check_record(record: Path | None) -> None:
    """Raise before anything is measured if the file is there and cannot be added to."""
    from placewright.operators.residual_files import runs_to_extend

    if record is not None:
        runs_to_extend(record)


def add_record(console: Console, record: Path, result: Result, measured: Measurement) -> None:
    """Add a measured plan to the file."""
    from placewright.operators.residual import measured_run
    from placewright.operators.residual_files import add_run

    count = add_run(measured_run(result.judgement, measured.measured_s), record)
    console.note(f"added to {record}, which has {count} measured runs now")
