"""The graph explorer of a page: a drawing of a graph to pan, zoom, search, open and close.

Python lays the graph out and writes the data; ``explorer.js`` draws.

Operators are in nested boxes of modules, from left to right by depth (`layout`). A box holds its
children in columns, layered by the longest path between them; columns wrap like the words of a
text, so that every box is about `ASPECT` times as wide as it is high. Nothing overlaps, and nothing
moves when a viewer closes or opens a box.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.report.page import DEVICE_COLOURS, Note, data_element, few_digits, tag, text

KEYS = (
    "Drag or arrow keys move; + and -, two fingers, or the wheel after a click zoom; 0 shows all. "
    "/ searches, Enter goes through the hits. A click, or Enter for what is in the middle, shows "
    "facts; a double click or c closes and opens a module; Esc clears."
)


@dataclass(frozen=True, slots=True, eq=False)
class Category:
    """A property with few values, to colour by: `of` has an index into `values` per operator.

    `devices`: what crosses between two of them stands out, and the page's chips stand for them.
    """

    name: str
    values: tuple[str, ...]
    of: IntArray
    devices: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Amount:
    """A number per operator in a unit (``s``, ``bytes`` or any).

    `sums`: whether a module's is the sum of its operators', and one can colour by it.
    """

    name: str
    unit: str
    of: FloatArray
    sums: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class ExploredGraph:
    """A graph and all that is shown of its operators.

    Attributes
    ----------
    bare
        Whether times and sizes have no unit.
    """

    name: str
    flow: LayoutGraph
    categories: Sequence[Category]
    amounts: Sequence[Amount]
    facts: Sequence[Note] = ()
    bare: bool = False


def explorer(graph: ExploredGraph) -> str:
    """The explorer as markup; the first category colours at first."""
    count, names = len(graph.flow.names), [c.name for c in graph.categories]
    colours = [*names, *(a.name for a in graph.amounts if a.sums)]
    canvas = tag(
        "canvas",
        text(f"Drawing of {graph.name}: {count} operators. The table below has the same."),
        tabindex=0,
        role="application",
        aria_label=f"graph of {graph.name}, {count} operators",
        aria_description=KEYS,
    )
    return tag(
        "div",
        tag(
            "div",
            _search(),
            _select("Colour by", "colour", colours),
            _modules(),
            _zoom(),
            class_="tools",
        ),
        tag("div", "", class_="key"),
        tag("div", canvas, tag("div", "", class_="about", aria_live="polite"), class_="stage"),
        tag("p", text(KEYS), class_="help"),
        tag("noscript", tag("p", "The drawing needs JavaScript.")),
        tag("details", tag("summary", "Operators as a table"), tag("div", "", class_="scroll")),
        data_element(_data(graph)),
        class_="explorer",
        data_script="explorer",
    )


def _search() -> str:
    field = '<input type="search" placeholder="name, kind or module" autocomplete="off">'
    return tag("label", "Search ", field) + tag("output", "", class_="hits")


def _select(title: str, name: str, options: Sequence[str]) -> str:
    entries = [tag("option", text(option), value=option) for option in options]
    return tag("label", f"{title} ", tag("select", *entries, data_choose=name))


def _modules() -> str:
    return _select("Modules", "modules", ("by zoom", "closed", "open"))


def _zoom() -> str:
    return "".join(
        tag("button", sign, type="button", aria_label=title, data_zoom=name)
        for name, sign, title in (
            ("out", "&minus;", "Zoom out"),
            ("in", "+", "Zoom in"),
            ("fit", "Fit", "Fit the whole graph"),
        )
    )


def _data(graph: ExploredGraph) -> dict[str, Any]:
    """Arrays, not an object per operator: pages hold tens of thousands of them."""
    flow, n, laid = graph.flow, len(graph.flow.names), layout(graph.flow)
    source, target, moved = flow.edges()
    return {
        "names": flow.names,
        "boxes": laid.boxes,
        "cell": (CELL_WIDTH, CELL_HEIGHT),
        "x": laid.x.tolist(),
        "y": laid.y.tolist(),
        "width": laid.width[n:].tolist(),
        "height": laid.height[n:].tolist(),
        "parent": laid.parent.tolist(),
        "edges": (source.tolist(), target.tolist(), [few_digits(b) for b in moved.tolist()]),
        "categories": [
            {"name": c.name, "values": c.values, "of": c.of.tolist(), "devices": c.devices}
            for c in graph.categories
        ],
        "amounts": [
            {
                "name": a.name,
                "unit": a.unit,
                "of": list(map(few_digits, a.of.tolist())),
                "sums": a.sums,
            }
            for a in graph.amounts
        ],
        "facts": [f.as_json() for f in graph.facts if any(f.of)],
        "colours": DEVICE_COLOURS,
        "bare": graph.bare,
    }


CELL_WIDTH, CELL_HEIGHT = 120, 26
"""Of an operator."""

GAP_X, GAP_Y, PAD, HEADER = 30, 10, 14, 24
ASPECT = 2.0

SHORT = 5 * (CELL_WIDTH + GAP_X)
"""Lines that are no wider are not wrapped."""

SMALLEST_MODULE = 4
"""Operators of smaller modules stand in the module around."""

MOST_CHILDREN, PART = 300, 100
"""More operators than these in one module are cut by depth into parts of so many."""

SWEEPS = 4
"""Passes over all columns that sort their rows."""

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LayoutGraph:
    """Operators and the tensors between them, as arrays.

    Attributes
    ----------
    producer, tensor_bytes, consumer_offsets, consumers
        Tensors in CSR, as in `placewright.OperatorProblem`.
    order_only
        Shape (t,): tensors that carry no value and are not drawn.
    modules, phases
        Of every operator; empty where they are not known.
    """

    names: tuple[str, ...]
    producer: IntArray
    tensor_bytes: FloatArray
    consumer_offsets: IntArray
    consumers: IntArray
    order_only: BoolArray
    modules: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()

    def readers(self, tensor: int) -> IntArray:
        """Operators that read a tensor."""
        return self.consumers[self.consumer_offsets[tensor] : self.consumer_offsets[tensor + 1]]

    def made(self) -> list[list[int]]:
        """Tensors that each operator makes."""
        made: list[list[int]] = [[] for _ in self.names]
        for tensor, operator in enumerate(self.producer.tolist()):
            made[operator].append(tensor)
        return made

    def edges(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Producers, readers and bytes of all pairs that share a value."""
        tensor = np.repeat(np.arange(len(self.producer)), np.diff(self.consumer_offsets))
        moved = np.stack([tensor, self.producer[tensor], self.consumers], axis=1)
        moved = np.unique(moved[~self.order_only[tensor]], axis=0)
        pairs, inverse = np.unique(moved[:, 1:], axis=0, return_inverse=True)
        weights, count = self.tensor_bytes[moved[:, 0]], len(pairs)
        bytes_ = np.bincount(inverse.ravel(), weights, count).astype(np.float64)
        return pairs[:, 0], pairs[:, 1], bytes_


@dataclass(frozen=True, slots=True, eq=False)
class GraphLayout:
    """Where operators and the boxes of modules stand; box 0 is the whole graph.

    Attributes
    ----------
    x, y
        Left upper corners: operators first, then boxes.
    width, height
        Of the same.
    parent
        Of the same: index of the box around; -1 for the whole graph. A box follows its parent.
    boxes
        Names of the boxes, inside the box around.
    """

    x: IntArray
    y: IntArray
    width: IntArray
    height: IntArray
    parent: IntArray
    boxes: tuple[str, ...]


def layout(flow: LayoutGraph) -> GraphLayout:
    """Lay out a graph; the same graph gives the same layout."""
    n, depth = len(flow.names), operator_depths(flow)
    parent, boxes = _boxes(_paths(flow, depth))
    tree = _Tree(n, parent)
    at = _Places(n + len(boxes))
    at.width[:n], at.height[:n] = CELL_WIDTH, CELL_HEIGHT
    depths = tree.depths(drawn_depths(flow, depth))
    edges = tree.edges_between_children(*flow.edges()[:2])
    for box in reversed(range(len(boxes))):  # a box follows its parent
        children, pairs = tree.children[box], edges.get(box, [])
        columns = _ordered(_columns(children, pairs, n, depths), pairs)
        at.fill(n + box, columns)
    for node in tree.downwards():
        at.x[node] += at.x[n + parent[node]]
        at.y[node] += at.y[n + parent[node]]
    return GraphLayout(at.x, at.y, at.width, at.height, parent, boxes)


def _paths(flow: LayoutGraph, depth: IntArray) -> list[Path]:
    """The boxes around each operator, outermost first."""
    modules = flow.modules or ("",) * len(flow.names)
    phases = flow.phases if len(set(flow.phases)) > 1 else ("",) * len(flow.names)
    full = [
        ((phase or "other",) if flow.phases and any(phases) else ())
        + (tuple(module.split(".")) if module else ())
        for module, phase in zip(modules, phases, strict=True)
    ]
    return _cut(_joined(_without_small(full)), depth)


def _without_small(paths: Sequence[Path]) -> list[Path]:
    """Paths that end before the first module with too few operators."""
    count = Counter(path[:k] for path in paths for k in range(1, len(path) + 1))
    return [
        path[: sum(count[path[:k]] >= SMALLEST_MODULE for k in range(1, len(path) + 1))]
        for path in paths
    ]


def _joined(paths: Sequence[Path]) -> list[Path]:
    """Paths in which a module that holds nothing but one other is one with it: ``a.b``."""
    below: dict[Path, set[str | None]] = defaultdict(set)
    for path in dict.fromkeys(paths):
        for k in range(len(path) + 1):
            below[path[:k]].add(path[k] if k < len(path) else None)
    joined: dict[Path, Path] = {}
    for path in dict.fromkeys(paths):
        parts: list[str] = []
        for k, name in enumerate(path):
            alone = k > 0 and len(below[path[:k]]) == 1
            parts[-1:] = [f"{parts[-1]}.{name}"] if alone else [*parts[-1:], name]
        joined[path] = tuple(parts)
    return [joined[path] for path in paths]


def _cut(paths: Sequence[Path], depth: IntArray) -> list[Path]:
    """Paths in which modules with too many operators of their own have parts by depth."""
    own, cut = defaultdict(list), list(paths)
    for i, path in enumerate(paths):
        own[path].append(i)
    for path, members in own.items():
        if len(members) <= MOST_CHILDREN:
            continue
        members.sort(key=lambda i: (depth[i], i))
        for start in range(0, len(members), PART):
            part = members[start : start + PART]
            name = f"depth {depth[part[0]]} to {depth[part[-1]]}"
            for i in part:
                cut[i] = (*path, f"{name} ({start // PART + 1})")
    return cut


def _boxes(paths: Sequence[Path]) -> tuple[IntArray, tuple[str, ...]]:
    """Parents of operators and boxes, and the names of the boxes."""
    index: dict[Path, int] = {(): 0}
    for path in dict.fromkeys(paths):
        for k in range(1, len(path) + 1):
            index.setdefault(path[:k], len(index))
    own = [index[path] for path in paths]
    around = [index[path[:-1]] if path else -1 for path in index]
    return np.array(own + around, dtype=np.int64), tuple(map(_title, index))


def _title(path: Path) -> str:
    """Name of a box; one of a list has the name of the list with it: ``layer.3``."""
    name = path[-1] if path else ""
    for around in reversed(".".join(path[:-1]).split(".")):
        if not (around and name[:1].isdigit()):
            break
        name = f"{around}.{name}"
    return name


class _Tree:
    """Nodes (operators, then boxes) with the box around each."""

    def __init__(self, operators: int, parent: IntArray) -> None:
        self.n, self.parent = operators, parent
        self.children: list[list[int]] = [[] for _ in range(len(parent) - operators)]
        for node, box in enumerate(parent.tolist()):
            if box >= 0:
                self.children[box].append(node)

    def downwards(self) -> Iterator[int]:
        """Boxes but the first, parents first; then operators."""
        yield from range(self.n + 1, len(self.parent))
        yield from range(self.n)

    def depths(self, depth: IntArray) -> _Depths:
        """Of operators and boxes: the mean and the largest depth of their operators."""
        boxes = len(self.children)
        count = np.concatenate([np.ones(self.n), np.zeros(boxes)])
        total = np.concatenate([depth.astype(np.float64), np.zeros(boxes)])
        most = total.copy()
        for node in (*range(self.n), *range(len(self.parent) - 1, self.n, -1)):
            around = self.n + self.parent[node]
            total[around] += total[node]
            count[around] += count[node]
            most[around] = max(most[around], most[node])
        return _Depths(total / np.maximum(count, 1), most)

    def edges_between_children(
        self, source: IntArray, target: IntArray
    ) -> dict[int, list[tuple[int, int]]]:
        """By box: pairs of its children between which something flows."""
        chain = self._chains()
        above, below = chain[source], chain[target]
        shared = np.cumprod(above == below, axis=1).sum(axis=1) - 1
        rows = np.arange(len(source))
        ends = np.stack(
            [chain[source, 0], above[rows, shared + 1], below[rows, shared + 1]], axis=1
        )
        ends[:, 0] = above[rows, shared]
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for box, a, b in np.unique(ends[source != target], axis=0).tolist():
            found[box - self.n].append((a, b))
        return found

    def _chains(self) -> IntArray:
        """Shape (n, levels): boxes around each operator, outermost first, then itself."""
        levels: list[list[int]] = []
        for box, around in enumerate(self.parent[self.n :].tolist()):
            levels.append([*(levels[around] if around >= 0 else []), self.n + box])
        longest = max(map(len, levels)) + 1
        chains = np.repeat(np.arange(self.n)[:, None], longest, axis=1)
        for i, box in enumerate(self.parent[: self.n].tolist()):
            chains[i, : len(levels[box])] = levels[box]
        return chains


@dataclass(frozen=True, slots=True, eq=False)
class _Depths:
    """Mean and largest depth of the operators in each node."""

    mean: FloatArray
    most: FloatArray

    def one_after_another(self, boxes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Neighbours in a sequence of boxes whose depths hardly overlap."""
        for a, b in pairwise(boxes):
            if self.most[a] <= self.mean[b]:
                yield a, b


def _columns(
    children: Sequence[int], pairs: Sequence[tuple[int, int]], operators: int, depth: _Depths
) -> list[list[int]]:
    """Children by the longest path that leads to them; what waits for nothing before its reader.

    Boxes may depend on each other in a circle: pairs that lead back in depth do not count. Boxes
    that are linked through others only follow each other by depth.
    """
    order = sorted(children, key=lambda node: (depth.mean[node], node))
    boxes = [node for node in order if node >= operators]
    pairs = [*pairs, *depth.one_after_another(boxes)]
    rank = {node: k for k, node in enumerate(order)}
    later: dict[int, list[int]] = {node: [] for node in children}
    waits: set[int] = set()
    for a, b in pairs:
        if rank[a] < rank[b]:
            later[a].append(b)
            waits.add(b)
    layer = dict.fromkeys(order, 0)
    for node in order:
        for reader in later[node]:
            layer[reader] = max(layer[reader], layer[node] + 1)
    for node in order:
        if node not in waits and later[node]:
            layer[node] = max(0, min(layer[reader] for reader in later[node]) - 1)
    columns: list[list[int]] = [[] for _ in range(max(layer.values()) + 1)]
    for node in order:
        columns[layer[node]].append(node)
    return [column for column in columns if column]


def _ordered(columns: list[list[int]], pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Each column sorted by where its neighbours stand.

    Barycentre heuristic of Sugiyama, Tagawa, Toda 1981 (doi 10.1109/TSMC.1981.4308636), without
    the dummy nodes for long edges.
    """
    row = {node: _place(k, len(column)) for column in columns for k, node in enumerate(column)}
    near: dict[int, list[int]] = {node: [] for node in row}
    for a, b in pairs:
        near[a].append(b)
        near[b].append(a)
    wide = [column for column in columns if len(column) > 1]
    for sweep in range(SWEEPS):
        for column in wide if sweep % 2 == 0 else reversed(wide):
            wanted = {k: _mean([row[other] for other in near[k]], row[k]) for k in column}
            column.sort(key=lambda k: (wanted[k], k))
            row.update({node: _place(k, len(column)) for k, node in enumerate(column)})
    return columns


def _place(k: int, count: int) -> float:
    """Rows are centred, so a column of one stands on the axis."""
    return k - (count - 1) / 2


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


class _Places:
    """Sizes of all nodes, and their places inside the box around."""

    def __init__(self, count: int) -> None:
        self.x, self.y, self.width, self.height = np.zeros((4, count), dtype=np.int64)

    def fill(self, box: int, columns: Sequence[Sequence[int]]) -> None:
        """Place the children of a box, and give it its size."""
        cut = list(self._not_too_high(columns))
        sizes = [self._size(column) for column in cut]
        shelves = _shelves(sizes)
        top = HEADER + PAD
        for shelf in shelves:
            left, high = PAD, max(sizes[k][1] for k in shelf)
            for k in shelf:
                self._stack(cut[k], left, top + (high - sizes[k][1]) // 2, sizes[k][0])
                left += sizes[k][0] + GAP_X
            self.width[box] = max(self.width[box], left - GAP_X + PAD)
            top += high + 2 * GAP_Y
        self.height[box] = top - 2 * GAP_Y + PAD

    def _size(self, column: Sequence[int]) -> tuple[int, int]:
        high = sum(int(self.height[node]) + GAP_Y for node in column) - GAP_Y
        return max(int(self.width[node]) for node in column), high

    def _not_too_high(self, columns: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Columns, those cut that are higher than all of the box should be."""
        area = sum(
            int((self.width[node] + GAP_X) * (self.height[node] + GAP_Y))
            for column in columns
            for node in column
        )
        most, high, part = math.sqrt(area / ASPECT), 0, list[int]()
        for column in columns:
            for node in column:
                if part and high + self.height[node] > most:
                    yield part
                    part, high = [], 0
                part.append(node)
                high += int(self.height[node]) + GAP_Y
            yield part
            part, high = [], 0

    def _stack(self, column: Sequence[int], left: int, top: int, width: int) -> None:
        for node in column:
            self.x[node], self.y[node] = left + (width - self.width[node]) // 2, top
            top += int(self.height[node]) + GAP_Y


def _shelves(sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Indices of columns by line, so that all lines together are about `ASPECT` wide."""
    area = sum((w + GAP_X) * (h + 2 * GAP_Y) for w, h in sizes)
    widest, whole = max(w for w, _ in sizes), sum(w + GAP_X for w, _ in sizes)
    if whole <= SHORT:
        return [list(range(len(sizes)))]
    widths = [max(widest, math.sqrt(area * ASPECT) * f) for f in (0.8, 0.9, 1.0, 1.15, 1.35)]

    def extent(shelves: Sequence[Sequence[int]]) -> float:
        wide = max(sum(sizes[k][0] + GAP_X for k in shelf) for shelf in shelves)
        high = sum(max(sizes[k][1] for k in shelf) + 2 * GAP_Y for shelf in shelves)
        return max(wide / ASPECT, high)

    return min((_wrapped(sizes, width) for width in (*widths, whole)), key=extent)


def _wrapped(sizes: Sequence[tuple[int, int]], width: float) -> list[list[int]]:
    shelves: list[list[int]] = []
    left = math.inf
    for k, (wide, _) in enumerate(sizes):
        if left + wide > width:
            shelves.append([])
            left = 0.0
        shelves[-1].append(k)
        left += wide + GAP_X
    return shelves


def operator_depths(flow: LayoutGraph) -> IntArray:
    """Shape (n,): operators on the longest path before each operator.

    Tensors that only order operators count where a reader waits for nothing else.
    """
    depth, made = np.zeros(len(flow.names), dtype=np.int64), flow.made()
    carries = np.repeat(~flow.order_only, np.diff(flow.consumer_offsets))
    fed = np.bincount(flow.consumers[carries], minlength=len(flow.names)) > 0
    for i in _topological(flow, made):
        for tensor in made[i]:
            readers = flow.readers(tensor)
            later = readers[~fed[readers]] if flow.order_only[tensor] else readers
            depth[later] = np.maximum(depth[later], depth[i] + 1)
    return depth


def _topological(flow: LayoutGraph, made: list[list[int]]) -> Sequence[int]:
    """Operators, producers first."""
    waiting = np.bincount(flow.consumers, minlength=len(flow.names)).tolist()
    order, ready = [], deque(k for k, count in enumerate(waiting) if count == 0)
    while ready:
        i = ready.popleft()
        order.append(i)
        for tensor in made[i]:
            for reader in flow.readers(tensor).tolist():
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    ready.append(reader)
    return order


def drawn_depths(flow: LayoutGraph, depth: IntArray) -> IntArray:
    """`depth`, but operators that wait for nothing stand just before their readers."""
    made, drawn = flow.made(), depth.copy()
    fed = np.bincount(flow.consumers, minlength=len(flow.names)) > 0
    for i in np.flatnonzero(~fed).tolist():
        readers = [flow.readers(tensor) for tensor in made[i]]
        first = min((int(depth[r].min()) for r in readers if len(r)), default=1)
        drawn[i] = max(0, first - 1)
    return drawn
