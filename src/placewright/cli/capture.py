"""placewright capture: a model becomes a graph."""

from __future__ import annotations

from placewright.cli.console import Console
from placewright.cli.options import (
    BatchOption,
    FormatOption,
    Model,
    OutputOption,
    QuietOption,
    TrainingOption,
    VerboseOption,
)


def capture(
    model: Model,
    training: TrainingOption = False,
    batch: BatchOption = None,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Turn a model into a graph of operators and tensors, without computing anything.

    [bold]Examples[/bold]

    [cyan]placewright capture zoo:inception_v3 -o graph.json[/cyan]

    [cyan]placewright capture mypackage.models:make --training --batch 8 -o graph.json[/cyan]
    """
    from placewright.cli.sources import SourceOptions, load_graph
    from placewright.graph.files import graph_json, write_graph

    console = Console(format, output, quiet, verbose)
    graph, _ = load_graph(SourceOptions(model, training=training, batch=batch), console)
    console.show(lambda: graph_json(graph), lambda: repr(graph))
    if output is not None:
        console.kept(write_graph(graph, output))
