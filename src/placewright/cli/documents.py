"""placewright show and schema: what a file is, its page, and the JSON schema of its kind."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli.console import Console, write
from placewright.cli.options import FormatOption
from placewright.errors import InputError

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

LARGE = 1_000_000
"""Characters from which a file is searched for keys before it is parsed, which takes ten times as
long as reading it."""


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
    data = read_document(file)
    kind = kind_of(data, where=str(file))
    target = console.output or Path(mkdtemp(prefix="placewright-page-")) / f"{file.stem}.html"
    write(target, documents()[kind].page(data, file))
    console.show(lambda: {"kind": kind, "page": str(target)}, lambda: str(target))
    if open_page and not webbrowser.open(target.resolve().as_uri()):
        console.note("no browser was found; open the page yourself")


def schema(console: Console, kind: KindArgument = None, format: FormatOption = "json") -> None:
    """Print the JSON schemas of the files that Placewright reads and writes.

    [bold]Example[/bold]

    [cyan]placewright schema cluster -o cluster.schema.json[/cyan]
    """
    known = documents()
    if kind is not None and kind not in known:
        raise typer.BadParameter(f"{kind!r} is none of {', '.join(sorted_kinds(known))}")
    schemas = {
        name: known[name].document.model.model_json_schema(by_alias=True)
        for name in (sorted_kinds(known) if kind is None else [kind])
    }
    data = schemas if kind is None else schemas[kind]
    console.answer(lambda: data, lambda: _table(schemas))


def documents() -> dict[str, Kind]:
    """Every kind of file, those of the wings first: they have keys that others have too."""
    from placewright.cluster.schema import ClusterFile
    from placewright.graph.files import GraphFile
    from placewright.graph.page import graph_page
    from placewright.planning.views import wing_views
    from placewright.planning.wing import Document
    from placewright.planning.wings import wings

    found = {}
    for wing in wings().values():
        files, views = wing.files(), wing_views(wing)
        for document in (files.plan_document, files.problem_document):
            found[document.kind] = Kind(document, partial(views.saved_page, document.kind))
    found["cluster"] = Kind(Document("cluster", ("devices",), ClusterFile), _cluster_page)
    found["graph"] = Kind(Document("graph", ("operators",), GraphFile), graph_page)
    return found


def sorted_kinds(known: Mapping[str, Kind]) -> list[str]:
    """Clusters and graphs first: what problems are made of."""
    return sorted(known, key=lambda kind: kind not in ("cluster", "graph"))


def read_document(path: Path) -> Data:
    """A JSON or YAML file whose top is a mapping."""
    from placewright.io.boundary import parse_json, parse_yaml
    from placewright.io.stored import is_yaml, stored_text

    yaml, text = is_yaml(path), stored_text(path)
    if not yaml and len(text) >= LARGE:
        _refuse_early(text, str(path))
    data = (parse_yaml if yaml else parse_json)(text, where=str(path))
    if not isinstance(data, dict):
        raise _unknown(str(path), f"its top is a {type(data).__name__}")
    return data


def document_kind(path: Path) -> str:
    """The kind of a file, by its keys.

    Raises
    ------
    InputError
        It is of no kind.
    """
    return kind_of(read_document(path), where=str(path))


def kind_of(data: Data, *, where: str) -> str:
    """The kind of a document, by its keys."""
    for name, kind in documents().items():
        if kind.document.matches(data):
            return name
    raise _unknown(where, f"its keys: {', '.join(list(data)[:8]) or 'none'}")


def _refuse_early(text: str, where: str) -> None:
    """Refuse JSON that is no mapping, or that has the keys of no document anywhere."""
    if re.match(r"\s*\[", text):
        raise _unknown(where, "its top is a list")
    needed = [
        {part for key in kind.document.keys for part in key.split(".")}
        for kind in documents().values()
    ]
    every = sorted(set().union(*needed))
    there = {key for key in every if f'"{key}"' in text}
    if "\\u" not in text and not any(keys <= there for keys in needed):
        raise _unknown(where, f"it lacks the keys {', '.join(every)}")


def _unknown(where: str, by: str) -> InputError:
    return InputError(
        "is none of Placewright's documents",
        where=where,
        by=by,
        hint="see `placewright schema`; published formats need their name, as in dag:FILE.json",
    )


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
