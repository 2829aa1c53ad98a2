"""placewright operators explain: why an operator is where it is."""

from __future__ import annotations

from typing import Annotated

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
    PlanFile,
    QuietOption,
    Source,
    TrainingOption,
    VerboseOption,
)
from placewright.planning.fixed_plan import judged_plan

OperatorName = Annotated[
    str,
    typer.Argument(metavar="NAME", show_default=False, help="An operator or a module's path."),
]


def explain(
    source: Source,
    plan: PlanFile,
    operator: OperatorName,
    on: OnOption = None,
    objective: ObjectiveOption = None,
    training: TrainingOption = False,
    batch: BatchOption = None,
    links: LinksOption = None,
    overlap: OverlapOption = None,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Say where an operator or a module runs, and what moving it would change.

    [bold]Example[/bold]

    [cyan]placewright operators explain problem.json plan.json addmm_3[/cyan]

    [cyan]placewright operators explain problem.json plan.json model.layers.14[/cyan]
    """
    from placewright.cli.sources import SourceOptions, load
    from placewright.operators.explain import explain as answer

    console = Console(format, output, quiet, verbose)
    loaded = load(SourceOptions(source, on, training, batch, objective, links, overlap), console)
    result = judged_plan(loaded.problem, plan)
    explanation = answer(result.problem, result.plan, operator)
    console.show(explanation.as_json, lambda: str(explanation))
    console.keep(explanation.as_json)
