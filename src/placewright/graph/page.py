"""The page of a graph file: operators coloured by phase, or by kind where there is one phase."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from placewright.graph.files import read_graph
from placewright.graph.graph import Graph
from placewright.graph.program import ORDER_ONLY
from placewright.report.graph_drawing import ColouredGraph, draw, picture, reading_direction
from placewright.report.page import (
    DEVICE_COLOURS,
    facts,
    heading,
    html_page,
    legend,
    scroll,
    section,
    tag,
    text,
)

BACK = ("backward", "optimizer")
"""Phases that are drawn from right to left."""


def graph_page(data: dict[str, Any], path: Path) -> str:
    """The page of a graph file."""
    graph = read_graph(path)
    picture, caption, names = structure_drawing(graph)
    return html_page(
        graph.name,
        heading(graph.name, f"graph, from {path.name}"),
        facts(
            [
                ("operators", str(len(graph.operators)), "lead"),
                ("tensors", str(len(graph.tensors)), ""),
                ("GFLOP", f"{graph.flops / 1e9:.3g}", ""),
            ]
        ),
        legend(names, ["" for _ in names]),
        section("Graph", caption, scroll(picture)),
        section("Operators", "", tag("pre", text(repr(graph)))),
    )


def structure_drawing(graph: Graph) -> tuple[str, str, tuple[str, ...]]:
    """SVG, a caption, and what the colours stand for; the area of an operator is its GFLOP."""
    coloured = _coloured(graph)
    drawn, names = picture(coloured), coloured.colour_names
    groups = f" as {len(drawn.nodes)} groups" if drawn.grouped else ""
    caption = f"{len(graph.operators)} operators{groups}, {reading_direction(drawn)}."
    return draw(drawn, names, bold=False), f"{caption} Area grows with FLOPs.", names


def _coloured(graph: Graph) -> ColouredGraph:
    phases = tuple(dict.fromkeys(op.phase for op in graph.operators))
    by_kind = len(phases) < 2
    names = _main_kinds(graph) if by_kind else tuple(p or "other" for p in phases)
    colour = {name: k for k, name in enumerate(names)}
    position = {op.name: i for i, op in enumerate(graph.operators)}
    readers = [[position[c] for c in tensor.consumers] for tensor in graph.tensors]
    return ColouredGraph(
        graph.operator_names,
        np.array(
            [
                colour.get(op.kind if by_kind else op.phase or "other", len(names) - 1)
                for op in graph.operators
            ],
            dtype=np.int64,
        ),
        names,
        np.array([op.flops / 1e9 for op in graph.operators]),
        np.array([position[t.producer] for t in graph.tensors], dtype=np.int64),
        np.array([t.bytes for t in graph.tensors], dtype=np.float64),
        np.cumsum([0, *map(len, readers)]),
        np.array([c for group in readers for c in group], dtype=np.int64),
        np.array([t.name.startswith(ORDER_ONLY) for t in graph.tensors], dtype=np.bool_),
        np.array([op.phase in BACK for op in graph.operators], dtype=np.bool_),
        tuple(op.module or op.kind for op in graph.operators),
    )


def _main_kinds(graph: Graph) -> tuple[str, ...]:
    count = Counter(op.kind for op in graph.operators)
    main = [kind for kind, _ in count.most_common(DEVICE_COLOURS - 1)]
    return (*main, "other") if len(count) > len(main) else tuple(main)
