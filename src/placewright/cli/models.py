"""placewright capture and profile: a model becomes a graph, a graph gets its costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from placewright.cli.console import Console
from placewright.cli.options import (
    BatchOption,
    LinksOption,
    MicroBatchesOption,
    Model,
    ObjectiveOption,
    OnOption,
    OverlapOption,
    Source,
    TrainingOption,
)

MethodOption = Annotated[
    Literal["auto", "in-place", "isolated", "analytic"],
    typer.Option("--method", help="Execute the step, time each operator alone, or compute."),
]
TableOption = Annotated[
    Path | None,
    typer.Option("--table", metavar="FILE", help="Keep what is measured, and measure it once."),
]


def capture(
    console: Console,
    model: Model,
    training: TrainingOption = False,
    batch: BatchOption = None,
    micro_batches: MicroBatchesOption = None,
) -> None:
    """Turn a model into a graph of operators and tensors, without computing anything.

    [bold]Examples[/bold]

    [cyan]placewright capture zoo:inception_v3 -o graph.json[/cyan]

    [cyan]placewright capture mypackage.models:make --training --batch 8 -o graph.json[/cyan]

    [cyan]placewright capture model.onnx -o graph.json[/cyan]
    """
    from placewright.cli.sources import SourceOptions, captured_graph
    from placewright.graph.files import graph_json, write_graph

    options = SourceOptions(model, training=training, batch=batch, micro_batches=micro_batches)
    graph = captured_graph(options, console)
    console.show(lambda: graph_json(graph), lambda: repr(graph))
    if console.output is not None:
        console.kept(write_graph(graph, console.output))


def profile(
    console: Console,
    source: Source,
    on: OnOption = None,
    training: TrainingOption = False,
    batch: BatchOption = None,
    micro_batches: MicroBatchesOption = None,
    objective: ObjectiveOption = None,
    links: LinksOption = None,
    overlap: OverlapOption = None,
    method: MethodOption = "auto",
    table: TableOption = None,
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

    options = SourceOptions(
        source,
        on,
        training,
        batch,
        objective,
        links=links,
        overlap=overlap,
        method=method,
        table=table,
        micro_batches=micro_batches,
    )
    problem = load(options, console).problem
    console.show(lambda: problem_json(problem), lambda: repr(problem))
    if console.output is not None:
        console.kept(write_problem(problem, console.output))
