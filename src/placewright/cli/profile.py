"""placewright profile: a graph on a cluster gets its costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from placewright.cli.console import Console
from placewright.cli.options import (
    BatchOption,
    FormatOption,
    LinksOption,
    ObjectiveOption,
    OnOption,
    OutputOption,
    OverlapOption,
    QuietOption,
    Source,
    TrainingOption,
    VerboseOption,
)

MethodOption = Annotated[
    Literal["auto", "in-place", "isolated", "analytic"],
    typer.Option("--method", help="Execute the step, time each operator alone, or compute."),
]
TableOption = Annotated[
    Path | None,
    typer.Option("--table", metavar="FILE", help="Keep what is measured, and measure it once."),
]


def profile(
    source: Source,
    on: OnOption = None,
    training: TrainingOption = False,
    batch: BatchOption = None,
    objective: ObjectiveOption = None,
    links: LinksOption = None,
    overlap: OverlapOption = None,
    method: MethodOption = "auto",
    table: TableOption = None,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Measure or compute what each operator costs on each device: a problem to be planned.

    [bold]Examples[/bold]

    [cyan]placewright profile zoo:resnet50 --training --on edge-duo -o problem.json[/cyan]

    [cyan]placewright profile graph.json --on server-4gpu --method analytic -o problem.json[/cyan]

    [cyan]placewright profile zoo:bert --on edge-quad --table here.json -o problem.json[/cyan]
    """
    from placewright.cli.sources import SourceOptions, load
    from placewright.operators.files import write_problem
    from placewright.operators.formats.writing import problem_json

    console = Console(format, output, quiet, verbose)
    ask = SourceOptions(
        source, on, training, batch, objective, links, overlap, method=method, table=table
    )
    problem = load(ask, console).problem
    console.show(lambda: problem_json(problem), lambda: repr(problem))
    if output is not None:
        console.kept(write_problem(problem, output))
