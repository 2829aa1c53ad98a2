"""placewright schema: the JSON schema of every file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from placewright.cli.console import Console
from placewright.cli.options import FormatOption, OutputOption, QuietOption, VerboseOption

DocumentName = Annotated[
    Literal["cluster", "graph", "problem", "plan", "samples", "samples-plan"] | None,
    typer.Argument(
        metavar="[FILE-KIND]",
        help="cluster, graph, problem, plan, samples or samples-plan; all without.",
    ),
]


def schema(
    kind: DocumentName = None,
    format: FormatOption = "json",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Print the JSON schemas of the files that Placewright reads and writes.

    [bold]Example[/bold]

    [cyan]placewright schema cluster -o cluster.schema.json[/cyan]
    """
    console = Console(format, output, quiet, verbose)
    models = _models()
    chosen = models if kind is None else {kind: models[kind]}
    schemas = {name: model.model_json_schema(by_alias=True) for name, model in chosen.items()}
    data = schemas if kind is None else schemas[kind]
    console.show(lambda: data, lambda: _table(schemas))
    console.keep(lambda: data)


def _models() -> dict[str, Any]:
    from placewright.cluster.files import ClusterFile
    from placewright.graph.files import GraphFile
    from placewright.operators.formats.schema import PlanFile, ProblemFile
    from placewright.samples.formats.schema import SampleFile, SamplePlanFile

    return {
        "cluster": ClusterFile,
        "graph": GraphFile,
        "problem": ProblemFile,
        "plan": PlanFile,
        "samples": SampleFile,
        "samples-plan": SamplePlanFile,
    }


def _table(schemas: dict[str, Any]) -> str:
    from placewright.report.text import plain_table

    rows = [
        (name if k == 0 else "", key, "required" if key in document.get("required", ()) else "")
        for name, document in schemas.items()
        for k, key in enumerate(document["properties"])
    ]
    return plain_table(("file", "key", ""), rows)
