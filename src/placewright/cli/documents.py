"""placewright show and schema: what a file is, its page, and the JSON schema of its kind."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli.console import Console, write
from placewright.cli.options import FormatOption

if TYPE_CHECKING:
    from placewright.planning.wing import Document

Data = dict[str, Any]

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="A cluster, graph, problem or plan file of any wing.",
    ),
]
KindArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE-KIND]", help="cluster, graph, problem, plan, samples, ...; all without."
    ),
]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file and how its page is made: ``page(data, path)``."""

    document: Document
    page: Callable[[Data, Path], str]


def show(
    console: Console,
    file: FileArgument,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="In a browser.")] = True,
) -> None:
    """Make a self-contained page of a file and open it; its path goes to stdout.

    [bold]Example[/bold]

    [cyan]placewright show plan.json -o plan.html[/cyan]
    """
    from placewright.files import kind_of, read_document

    data = read_document(file)
    kind = kind_of(data, where=str(file))
    target = console.output or Path(mkdtemp(prefix="placewright-page-")) / f"{file.stem}.html"
    write(target, kinds()[kind].page(data, file))
    console.show(lambda: {"kind": kind, "page": str(target)}, lambda: str(target))
    if open_page and not webbrowser.open(target.resolve().as_uri()):
        console.note("no browser was found; open the page yourself")


def schema(console: Console, kind: KindArgument = None, format: FormatOption = "json") -> None:
    """Print the JSON schemas of the files that Placewright reads and writes.

    [bold]Example[/bold]

    [cyan]placewright schema cluster -o cluster.schema.json[/cyan]
    """
    known = kinds()
    if kind is not None and kind not in known:
        raise typer.BadParameter(f"{kind!r} is none of {', '.join(sorted_kinds(known))}")
    schemas = {
        name: known[name].document.model.model_json_schema(by_alias=True)
        for name in (sorted_kinds(known) if kind is None else [kind])
    }
    data = schemas if kind is None else schemas[kind]
    console.answer(lambda: data, lambda: _table(schemas))


def kinds() -> dict[str, Kind]:
    """Every kind of file with its page."""
    from placewright.files import documents
    from placewright.graph.page import graph_page
    from placewright.planning.views import wing_views
    from placewright.planning.wings import wings

    pages = {"cluster": _cluster_page, "graph": graph_page}
    for wing in wings().values():
        files, views = wing.files(), wing_views(wing)
        for document in (files.plan_document, files.problem_document):
            pages[document.kind] = partial(views.saved_page, document.kind)
    return {name: Kind(document, pages[name]) for name, document in documents().items()}


def sorted_kinds(known: Iterable[str]) -> list[str]:
    """Clusters and graphs first: what problems are made of."""
    return sorted(known, key=lambda kind: kind not in ("cluster", "graph"))


def _cluster_page(data: Data, path: Path) -> str:
    from placewright.cluster.files import read_cluster
    from placewright.planning.views import text_page

    cluster = read_cluster(path)
    return text_page(cluster.name, "cluster", path, repr(cluster))


def _table(schemas: Mapping[str, Any]) -> str:
    from placewright.report.text import plain_table

    rows = [
        (name if k == 0 else "", key, "required" if key in document.get("required", ()) else "")
        for name, document in schemas.items()
        for k, key in enumerate(document["properties"])
    ]
    return plain_table(("file", "key", ""), rows)
