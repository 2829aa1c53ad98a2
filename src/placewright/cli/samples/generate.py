"""placewright samples generate: an edge cloud at random."""

from __future__ import annotations

from typing import Annotated

import typer

from placewright.cli.console import Console
from placewright.cli.options import (
    FormatOption,
    OutputOption,
    QuietOption,
    SeedOption,
    VerboseOption,
)

RegimeName = Annotated[
    str,
    typer.Argument(
        metavar="REGIME", show_default=False, help="mild, moderate, heavy or network-bound."
    ),
]


def generate(
    regime: RegimeName,
    nodes: Annotated[int, typer.Option("--nodes", min=1, metavar="N", help="How many.")] = 10,
    seed: SeedOption = 0,
    format: FormatOption = "yaml",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Make a file of nodes and links; the same seed gives the same file.

    [bold]Example[/bold]

    [cyan]placewright samples generate heavy --nodes 20 --seed 1 -o nodes.yaml -q[/cyan]
    """
    from placewright.samples.files import write_problem
    from placewright.samples.formats.writing import problem_json
    from placewright.samples.generate import generate as make

    console = Console(format, output, quiet, verbose)
    problem = make(regime, nodes, seed)
    if output is None or format != "yaml":
        console.show(lambda: problem_json(problem), lambda: repr(problem))
    if output is not None:
        console.kept(write_problem(problem, output))
