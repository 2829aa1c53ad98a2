"""Drawings of dataflow graphs: operators, or groups where there are many, in columns and rows.

They are coloured by device; transfers between devices stand out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.report.page import device_class, drawing, number, tag
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


def _node(node: DrawnNode, at: Point, largest: float, device_names: tuple[str, ...]) -> str:
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


MOST_NODES = 400
"""More operators than these are drawn in groups."""

MOST_GROUPS = 200
MOST_COLUMNS = 72
SWEEPS = 6
"""Passes over all columns that sort their rows."""


@dataclass(frozen=True, slots=True, eq=False)
class ColouredGraph:
    """Operators and tensors as arrays, with a colour for every operator.

    Attributes
    ----------
    colour, colour_names
        Shape (n,): index into `colour_names`, the devices of a placed graph.
    seconds
        Shape (n,): what the area of an operator stands for.
    producer, tensor_bytes, consumer_offsets, consumers
        Tensors in CSR, as in `placewright.OperatorProblem`.
    order_only
        Shape (t,): tensors that carry no value and are not drawn.
    back
        Shape (n,): operators of the backward or optimizer phase, drawn from right to left.
    modules
        Module path of every operator, or its kind where it has none; empty where unknown.
    """

    names: tuple[str, ...]
    colour: IntArray
    colour_names: tuple[str, ...]
    seconds: FloatArray
    producer: IntArray
    tensor_bytes: FloatArray
    consumer_offsets: IntArray
    consumers: IntArray
    order_only: BoolArray
    back: BoolArray
    modules: tuple[str, ...] = ()

    def readers(self, tensor: int) -> IntArray:
        """Operators that read a tensor."""
        return self.consumers[self.consumer_offsets[tensor] : self.consumer_offsets[tensor + 1]]

    def made(self) -> list[list[int]]:
        """Tensors that each operator makes."""
        made: list[list[int]] = [[] for _ in self.names]
        for tensor, operator in enumerate(self.producer.tolist()):
            made[operator].append(tensor)
        return made


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One operator or group.

    Attributes
    ----------
    depth
        Mean number of operators on the longest path that leads to it.
    back
        Whether it is of the backward or the optimizer phase.
    """

    name: str
    colour: int
    depth: float
    seconds: float
    count: int
    back: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """Tensors from one node to another (indices), and their bytes."""

    source: int
    target: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes and edges to be drawn; `grouped` names what nodes were grouped by, if at all."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[Edge, ...]
    grouped: str = ""


def picture(graph: ColouredGraph) -> Picture:
    """At most about `MOST_NODES` nodes: operators, else modules, else ranges of depth."""
    depth = drawn_depths(graph)
    if len(graph.names) <= MOST_NODES:
        return _contract(graph, depth, list(graph.names), "")
    keys = _module_keys(graph)
    if keys is not None:
        return _contract(graph, depth, keys, "module and device")
    step = max(1.0, (depth.max() + 1) / MOST_COLUMNS)
    by_depth = [
        (f"depth {int(d // step * step)} and on", graph.colour_names[c])
        for d, c in zip(depth, graph.colour, strict=True)
    ]
    return _contract(graph, depth, by_depth, "depth and device")


def operator_depths(graph: ColouredGraph) -> IntArray:
    """Shape (n,): operators on the longest path before each operator.

    Tensors that only order operators count where a reader waits for nothing else.
    """
    depth, made = np.zeros(len(graph.names), dtype=np.int64), graph.made()
    carries = np.repeat(~graph.order_only, np.diff(graph.consumer_offsets))
    fed = np.bincount(graph.consumers[carries], minlength=len(graph.names)) > 0
    for i in _topological(graph, made):
        for tensor in made[i]:
            readers = graph.readers(tensor)
            later = readers[~fed[readers]] if graph.order_only[tensor] else readers
            depth[later] = np.maximum(depth[later], depth[i] + 1)
    return depth


def _topological(graph: ColouredGraph, made: list[list[int]]) -> Sequence[int]:
    """Operators, producers first."""
    waiting = np.bincount(graph.consumers, minlength=len(graph.names))
    order, ready = [], deque(np.flatnonzero(waiting == 0).tolist())
    while ready:
        i = ready.popleft()
        order.append(i)
        for tensor in made[i]:
            for reader in graph.readers(tensor).tolist():
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    ready.append(reader)
    return order


def drawn_depths(graph: ColouredGraph) -> IntArray:
    """`operator_depths`, but operators that wait for nothing stand just before their readers."""
    depth, made = operator_depths(graph), graph.made()
    drawn, fed = depth.copy(), np.bincount(graph.consumers, minlength=len(graph.names)) > 0
    for i in np.flatnonzero(~fed).tolist():
        readers = [graph.readers(tensor) for tensor in made[i]]
        first = min((int(depth[r].min()) for r in readers if len(r)), default=1)
        drawn[i] = max(0, first - 1)
    return drawn


def _module_keys(graph: ColouredGraph) -> list[tuple[str, bool, int]] | None:
    """The deepest cut of the module tree that gives few enough groups, ``None`` without one."""
    if not graph.modules:
        return None
    best = None
    for level in range(1, 12):
        keys = [
            (".".join(module.split(".")[:level]), bool(back), int(colour))
            for module, back, colour in zip(graph.modules, graph.back, graph.colour, strict=True)
        ]
        if len(set(keys)) > MOST_GROUPS or (best is not None and len(set(keys)) == len(set(best))):
            break
        best = keys
    return best if best is not None and len(set(best)) > 2 else None


def _contract(
    graph: ColouredGraph, depth: IntArray, keys: Sequence[Hashable], grouped: str
) -> Picture:
    """One node per key."""
    number: dict[Hashable, int] = {}
    group = np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
    count, seconds = np.bincount(group), np.bincount(group, graph.seconds)
    mean_depth = np.bincount(group, depth) / count
    first = np.unique(group, return_index=True)[1]
    nodes = tuple(
        DrawnNode(
            _key_text(key), int(graph.colour[i]), float(d), float(s), int(c), bool(graph.back[i])
        )
        for key, i, d, s, c in zip(number, first, mean_depth, seconds, count, strict=True)
    )
    return Picture(nodes, _edges(graph, group), grouped)


def _edges(graph: ColouredGraph, group: IntArray) -> tuple[Edge, ...]:
    """Between different groups, each tensor once per pair."""
    tensor = np.repeat(np.arange(len(graph.producer)), np.diff(graph.consumer_offsets))
    source, target = group[graph.producer[tensor]], group[graph.consumers]
    drawn = (source != target) & ~graph.order_only[tensor]
    moved = np.unique(np.stack([tensor, source, target], axis=1)[drawn], axis=0)
    pairs, inverse = np.unique(moved[:, 1:], axis=0, return_inverse=True)
    sizes = np.bincount(inverse.ravel(), graph.tensor_bytes[moved[:, 0]], minlength=len(pairs))
    return tuple(Edge(int(s), int(t), float(b)) for (s, t), b in zip(pairs, sizes, strict=True))


def _key_text(key: Hashable) -> str:
    if isinstance(key, tuple):
        phase = {True: "backward", False: "forward"}.get(key[1], key[1])
        return ", ".join(part for part in (key[0], phase) if part)
    return str(key)


def bands(picture: Picture) -> list[list[list[int]]]:
    """Node indices by band, column and row, ordered so that few edges cross.

    A training step has two bands, forward and backward; the second runs from right to left, so
    that an operator stands near its gradient. Everything else has one.
    """
    forward = [k for k, node in enumerate(picture.nodes) if not node.back]
    backward = [k for k, node in enumerate(picture.nodes) if node.back]
    laid = [_ordered(picture, _by_depth(picture, forward))] if forward else []
    if backward:
        turned = _by_depth(picture, backward)[::-1]
        laid.append(_ordered(picture, turned))
    return laid


def _by_depth(picture: Picture, members: Sequence[int]) -> list[list[int]]:
    depths = [picture.nodes[k].depth for k in members]
    first, span = min(depths), max(depths) - min(depths) + 1
    count = min(MOST_COLUMNS, int(span))
    filled: list[list[int]] = [[] for _ in range(count)]
    for k, depth in zip(members, depths, strict=True):
        filled[min(count - 1, int((depth - first) / span * count))].append(k)
    return [column for column in filled if column]


def _ordered(picture: Picture, filled: list[list[int]]) -> list[list[int]]:
    """Each column sorted by where its neighbours stand.

    Barycentre heuristic of Sugiyama, Tagawa, Toda 1981 (doi 10.1109/TSMC.1981.4308636), without
    the dummy nodes for long edges.
    """
    row = {node: _place(k, len(column)) for column in filled for k, node in enumerate(column)}
    near = _neighbours(picture, row)
    for sweep in range(SWEEPS):
        for column in filled if sweep % 2 == 0 else reversed(filled):
            wanted = {k: _mean([row[other] for other in near[k]], row[k]) for k in column}
            column.sort(key=lambda k: (wanted[k], k))
            row.update({node: _place(k, len(column)) for k, node in enumerate(column)})
    return filled


def _neighbours(picture: Picture, members: Mapping[int, float]) -> dict[int, list[int]]:
    near: dict[int, list[int]] = {node: [] for node in members}
    for edge in picture.edges:
        if edge.source in members and edge.target in members:
            near[edge.source].append(edge.target)
            near[edge.target].append(edge.source)
    return near


def _place(k: int, count: int) -> float:
    """Rows are centred, so a column of one stands on the axis."""
    return k - (count - 1) / 2


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
