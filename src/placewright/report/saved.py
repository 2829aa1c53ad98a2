"""Pages of files: whatever was saved can be looked at again, without what it was made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from placewright.report.saved_moves import saved_moves_page
from placewright.report.saved_plan import saved_plan_page
from placewright.report.saved_result import Data
from placewright.report.sheet import facts, heading, legend, section, sheet
from placewright.report.svg import tag, text


def saved_page(kind: str, data: Data, path: Path) -> str:
    """The page of a file as text.

    Parameters
    ----------
    kind
        As in `placewright.cli.documents`.
    data
        What is in it.
    """
    pages: Mapping[str, Callable[[Data, Path], str]] = {
        "plan": saved_plan_page,
        "samples plan": saved_moves_page,
        "problem": _problem_page,
        "nodes": _nodes_page,
        "graph": _graph_page,
        "cluster": _cluster_page,
    }
    return pages[kind](data, path)


def _problem_page(data: Data, path: Path) -> str:
    from placewright.operators.files import read_problem

    problem = read_problem(path)
    return _text_page(problem.name, "problem", path, repr(problem))


def _nodes_page(data: Data, path: Path) -> str:
    from placewright.samples.files import read_problem

    problem = read_problem(path)
    return _text_page(problem.name, "nodes", path, repr(problem))


def _graph_page(data: Data, path: Path) -> str:
    from placewright.graph.files import read_graph
    from placewright.report.structure import structure_view

    graph = read_graph(path)
    picture, caption, names = structure_view(graph)
    body = [
        heading(graph.name, f"graph, from {path.name}"),
        facts(
            [
                ("operators", str(len(graph.operators)), "lead"),
                ("tensors", str(len(graph.tensors)), ""),
                ("GFLOP", f"{graph.flops / 1e9:.3g}", ""),
            ]
        ),
        legend(names, ["" for _ in names]),
        section("Graph", caption, tag("div", picture, class_="scroll")),
        section("Operators", "", tag("pre", text(repr(graph)))),
    ]
    return sheet(graph.name, *body)


def _cluster_page(data: Data, path: Path) -> str:
    from placewright.cluster.files import read_cluster

    cluster = read_cluster(path)
    return _text_page(cluster.name, "cluster", path, repr(cluster))


def _text_page(name: str, kind: str, path: Path, table: str) -> str:
    body = section(kind.capitalize(), "", tag("pre", text(table), class_="scroll"))
    return sheet(name, heading(name, f"{kind}, from {path.name}"), body)
