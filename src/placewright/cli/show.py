"""placewright show: a self-contained page for any graph, problem, plan, cluster or nodes file."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer

from placewright.cli.console import Console, write
from placewright.cli.options import FormatOption, OutputOption, QuietOption, VerboseOption

ShownFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="graph.json, problem.json, plan.json, cluster.yaml, nodes.yaml",
    ),
]


def show(
    file: ShownFile,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="In a browser.")] = True,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Make a self-contained page of a file and open it; its path goes to stdout.

    [bold]Example[/bold]

    [cyan]placewright show plan.json -o plan.html[/cyan]
    """
    from placewright.cli.documents import kind_of, read_document
    from placewright.report.saved import saved_page

    console = Console(format, output, quiet, verbose)
    data = read_document(file)
    kind = kind_of(data, where=str(file))
    target = output or Path(mkdtemp(prefix="placewright-page-")) / f"{file.stem}.html"
    write(target, saved_page(kind, data, file))
    console.show(lambda: {"kind": kind, "page": str(target)}, lambda: str(target))
    if open_page and not webbrowser.open(target.resolve().as_uri()):
        console.note("no browser was found; open the page yourself")
