"""The operator graph, coloured by device; what crosses between devices stands out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from placewright.numerics.arrays import IntArray
from placewright.report.graph_groups import Edge, Node, Picture, picture
from placewright.report.graph_layout import bands
from placewright.report.svg import device_class, drawing, number, tag
from placewright.report.text import seconds, size

if TYPE_CHECKING:
    from placewright.graph.graph import Graph
    from placewright.operators.problem import OperatorProblem

WIDTH, PAD, ROW, BAND_GAP = 1120.0, 16.0, 20.0, 36.0
SMALLEST, LARGEST = 2.5, 9.0

Point = tuple[float, float]


def graph_view(
    problem: OperatorProblem, placement: IntArray, graph: Graph | None = None
) -> tuple[str, str]:
    """The picture as SVG, and one sentence on what it shows."""
    shown = picture(problem, placement, graph)
    return draw(shown, problem.device_names), _caption(problem, shown)


def draw(shown: Picture, device_names: tuple[str, ...], *, bold: bool = True) -> str:
    """A layered picture as SVG; with `bold`, what crosses between devices stands out."""
    at, height = _positions(bands(shown))
    largest = max((node.seconds for node in shown.nodes), default=0.0) or 1.0
    most = max((edge.bytes for edge in shown.edges), default=0.0) or 1.0
    across = [e for e in shown.edges if bold and _crosses(shown, e)]
    inside = [e for e in shown.edges if not (bold and _crosses(shown, e))]
    edges = [_inner_edge(e, at) for e in inside]
    edges += [_crossing(shown, e, at, most) for e in across]
    nodes = [_node(n, at[k], largest, device_names) for k, n in enumerate(shown.nodes)]
    return drawing(WIDTH, height, *edges, *nodes, title="graph coloured by device")


def _positions(laid: list[list[list[int]]]) -> tuple[dict[int, Point], float]:
    """Where each node stands, and the height of it all: bands one below the other."""
    at: dict[int, Point] = {}
    top = PAD
    for filled in laid:
        height = max(len(column) for column in filled) * ROW
        step = (WIDTH - 2 * PAD) / max(1, len(filled) - 1)
        for c, column in enumerate(filled):
            for k, node in enumerate(column):
                row = top + height / 2 + (k - (len(column) - 1) / 2) * ROW
                at[node] = (PAD + c * step, row)
        top += height + BAND_GAP
    return at, top - BAND_GAP + PAD


def _crosses(shown: Picture, edge: Edge) -> bool:
    return shown.nodes[edge.source].device != shown.nodes[edge.target].device


def _inner_edge(edge: Edge, at: dict[int, Point]) -> str:
    far = abs(at[edge.source][0] - at[edge.target][0]) > WIDTH / 5
    return tag("path", d=_curve(edge, at), class_="edge far" if far else "edge")


def _crossing(shown: Picture, edge: Edge, at: dict[int, Point], most: float) -> str:
    names = f"{shown.nodes[edge.source].name} → {shown.nodes[edge.target].name}"
    width = number(1.0 + 2.5 * math.sqrt(edge.bytes / most))
    tip = f"{names}\n{size(edge.bytes)} between devices"
    path = _curve(edge, at)
    return tag("path", d=path, class_="edge cross", stroke_width=width, data_tip=tip)


def _curve(edge: Edge, at: dict[int, Point]) -> str:
    (x1, y1), (x2, y2) = at[edge.source], at[edge.target]
    middle = number((x1 + x2) / 2)
    ends = f"{middle} {number(y1)} {middle} {number(y2)} {number(x2)} {number(y2)}"
    return f"M{number(x1)} {number(y1)}C{ends}"


def _node(node: Node, at: Point, largest: float, device_names: tuple[str, ...]) -> str:
    radius = SMALLEST + (LARGEST - SMALLEST) * math.sqrt(node.seconds / largest)
    many = f" ({node.count} operators)" if node.count > 1 else ""
    tip = f"{node.name}{many}\n{device_names[node.device]}, {seconds(node.seconds)}"
    return tag(
        "circle",
        cx=at[0],
        cy=at[1],
        r=radius,
        class_=f"node {device_class(node.device)}",
        data_device=node.device,
        data_tip=tip,
    )


def _caption(problem: OperatorProblem, shown: Picture) -> str:
    across = [e for e in shown.edges if _crosses(shown, e)]
    moved = sum(e.bytes for e in across)
    what = (
        f"{problem.n} operators as {len(shown.nodes)} groups by {shown.grouped}"
        if shown.grouped
        else f"{problem.n} operators"
    )
    bold = (
        f"the bold lines are the {len(across)} connections that cross devices ({size(moved)})."
        if across
        else "nothing crosses devices."
    )
    return f"{what}, {flow_words(shown)}. Area grows with compute time; {bold}"


def flow_words(shown: Picture) -> str:
    """How to read the picture."""
    if any(node.back for node in shown.nodes):
        return "forward from left to right above, backward and updates from right to left below"
    return "from left to right as data flows"
