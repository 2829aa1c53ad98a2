"""placewright capture, profile, show and schema: graphs of models are made, any file is shown."""

from __future__ import annotations

import webbrowser
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from placewright.cli import options
from placewright.cli.console import Console, write

if TYPE_CHECKING:
    from placewright.planning.wing import Document


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
    model: options.Model,
    training: options.TrainingOption = False,
    batch: options.BatchOption = None,
    micro_batches: options.MicroBatchesOption = None,
) -> None:
    """Turn a model into a graph of operators and tensors, without computing anything.

    [bold]Examples[/bold]

    [cyan]placewright capture zoo:inception_v3 -o graph.json[/cyan]

    [cyan]placewright capture mypackage.models:make --training --batch 8 -o graph.json[/cyan]

    [cyan]placewright capture model.onnx -o graph.json[/cyan]
    """
    from placewright.cli.sources import SourceOptions, captured_graph
    from placewright.graph.files import graph_json, write_graph

    source_options = SourceOptions(
        model, training=training, batch=batch, micro_batches=micro_batches
    )
    graph = captured_graph(source_options, console)
    console.show(lambda: graph_json(graph), lambda: repr(graph))
    if console.output is not None:
        console.kept(write_graph(graph, console.output))


def profile(
    console: Console,
    source: options.Source,
    on: options.OnOption = None,
    training: options.TrainingOption = False,
    batch: options.BatchOption = None,
    micro_batches: options.MicroBatchesOption = None,
    objective: options.ObjectiveOption = None,
    links: options.LinksOption = None,
    overlap: options.OverlapOption = None,
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
    from placewright.operators.files import problem_json, write_problem

    source_options = SourceOptions(
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
    problem = load(source_options, console, planned=False).problem
    console.show(lambda: problem_json(problem), lambda: repr(problem))
    if console.output is not None:
        console.kept(write_problem(problem, console.output))


SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FOLDER...",
        show_default=False,
        help="Problem files or folders of them; published formats by name, as in dag:FOLDER.",
    ),
]
BenchPlannersOption = Annotated[
    str | None,
    typer.Option(
        "--planners", metavar="NAMES", help="Separated by commas; by default those of compare."
    ),
]

Data = dict[str, Any]

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="A cluster, graph, problem or plan file of any wing.",
    ),
]
OtherArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[OTHER]", show_default=False, help="A plan to show beside a plan."),
]
KindArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE-KIND]", help="cluster, graph, problem, plan, samples, ...; all without."
    ),
]


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of file and how its page is made: ``page(data, path)``."""

    document: Document
    page: Callable[[Data, Path], str]


def show(
    console: Console,
    file: FileArgument,
    other: OtherArgument = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="In a browser.")] = True,
) -> None:
    """Make a self-contained page of a file, or of two plans, and open it; its path goes to stdout.

    [bold]Examples[/bold]

    [cyan]placewright show plan.json -o plan.html[/cyan]

    [cyan]placewright show plan.json other-plan.json[/cyan]
    """
    from placewright.files import kind_of, read_document
    from placewright.planning.side_by_side import side_by_side_page, side_of_data

    data = read_document(file)
    kind = kind_of(data, where=str(file))
    target = console.output or Path(mkdtemp(prefix="placewright-page-")) / f"{file.stem}.html"
    if other is None:
        write(target, kinds()[kind].page(data, file))
    else:
        sides = side_of_data(data, str(file)), side_of_data(read_document(other), str(other))
        write(target, side_by_side_page(*sides))
    console.show(lambda: {"kind": kind, "page": str(target)}, lambda: str(target))
    if open_page and not webbrowser.open(target.resolve().as_uri()):
        console.note("no browser was found; open the page yourself")


def bench(
    console: Console,
    sources: SourcesArgument,
    planners: BenchPlannersOption = None,
    time_limit: options.TimeLimitOption = 10.0,
    seed: options.SeedOption = 0,
) -> None:
    """Run planners on every problem of a folder: ratio to best and bound, wins, time.

    Each planner runs alone, within the time limit.

    [bold]Examples[/bold]

    [cyan]placewright bench dag:graphs --planners heft,cpop,auto[/cyan]

    [cyan]placewright bench 'stg:rnc50?devices=4' -o bench.json[/cyan]
    """
    from placewright.files import read
    from placewright.planning.benchmark import bench as run
    from placewright.planning.parameters import planner_names

    read_from = {
        f"{source}/{name}" if name else source: problem
        for source in sources
        for found in [read(source)]
        for name, problem in (found.items() if isinstance(found, dict) else [("", found)])
    }
    # Files of two folders may have one name.
    count = Counter(Path(source).name for source in read_from)
    problems = {
        Path(source).name if count[Path(source).name] == 1 else source: problem
        for source, problem in read_from.items()
    }
    names = [] if planners is None else planner_names(planners)
    with console.meter("bench", names=("", "", "")) as meter:
        found = run(problems, names, time_limit_s=time_limit, seed=seed, progress=meter)
    console.answer(found.as_json, lambda: repr(found))


def schema(
    console: Console, kind: KindArgument = None, format: options.FormatOption = "json"
) -> None:
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


def kinds() -> dict[str, DocumentKind]:
    """Every kind of file with its page."""
    from placewright.files import documents
    from placewright.graph.page import graph_page
    from placewright.planning.views import wing_views
    from placewright.planning.wings import families

    pages = {"cluster": _cluster_page, "graph": graph_page}
    for _, wing in families():
        files, views = wing.files(), wing_views(wing)
        for document in (files.plan_document, files.problem_document):
            pages[document.kind] = partial(views.saved_page, document.kind)
    return {name: DocumentKind(document, pages[name]) for name, document in documents().items()}


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
