"""Drawings of dataflow graphs, coloured by device; transfers between devices stand out."""

from __future__ import annotations

import math

from placewright.report.graph_picture import ColouredGraph, Edge, Node, Picture, bands, picture
from placewright.report.svg import device_class, drawing, number, tag
from placewright.report.text import seconds, size

WIDTH, PAD, ROW, BAND_GAP = 1120.0, 16.0, 20.0, 36.0
SMALLEST, LARGEST = 2.5, 9.0

Point = tuple[float, float]


def placed_drawing(graph: ColouredGraph) -> tuple[str, str]:
    """A graph coloured by device as SVG, and a caption."""
    drawn = picture(graph)
    return draw(drawn, graph.colour_names), _caption(len(graph.names), drawn)


def draw(drawn: Picture, device_names: tuple[str, ...], *, bold: bool = True) -> str:
    """A layered picture as SVG; with `bold`, what crosses between devices stands out."""
    at, height = _positions(bands(drawn))
    largest = max((node.seconds for node in drawn.nodes), default=0.0) or 1.0
    most = max((edge.bytes for edge in drawn.edges), default=0.0) or 1.0
    across = [e for e in drawn.edges if bold and _crosses(drawn, e)]
    inside = [e for e in drawn.edges if not (bold and _crosses(drawn, e))]
    edges = [_inner_edge(e, at) for e in inside]
    edges += [_crossing(drawn, e, at, most) for e in across]
    nodes = [_node(n, at[k], largest, device_names) for k, n in enumerate(drawn.nodes)]
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


def _crosses(drawn: Picture, edge: Edge) -> bool:
    return drawn.nodes[edge.source].colour != drawn.nodes[edge.target].colour


def _inner_edge(edge: Edge, at: dict[int, Point]) -> str:
    far = abs(at[edge.source][0] - at[edge.target][0]) > WIDTH / 5
    return tag("path", d=_curve(edge, at), class_="edge far" if far else "edge")


def _crossing(drawn: Picture, edge: Edge, at: dict[int, Point], most: float) -> str:
    names = f"{drawn.nodes[edge.source].name} → {drawn.nodes[edge.target].name}"
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
    tip = f"{node.name}{many}\n{device_names[node.colour]}, {seconds(node.seconds)}"
    return tag(
        "circle",
        cx=at[0],
        cy=at[1],
        r=radius,
        class_=f"node {device_class(node.colour)}",
        data_device=node.colour,
        data_tip=tip,
    )


def _caption(operators: int, drawn: Picture) -> str:
    across = [e for e in drawn.edges if _crosses(drawn, e)]
    moved = sum(e.bytes for e in across)
    what = (
        f"{operators} operators as {len(drawn.nodes)} groups by {drawn.grouped}"
        if drawn.grouped
        else f"{operators} operators"
    )
    bold = (
        f"the bold lines are the {len(across)} connections that cross devices ({size(moved)})."
        if across
        else "nothing crosses devices."
    )
    return f"{what}, {reading_direction(drawn)}. Area grows with compute time; {bold}"


def reading_direction(drawn: Picture) -> str:
    """How to read the picture."""
    if any(node.back for node in drawn.nodes):
        return "forward from left to right above, backward and updates from right to left below"
    return "from left to right as data flows"
