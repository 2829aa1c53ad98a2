"""The graph explorer of a page: a drawing of a graph to pan, zoom, search, open and close.

Python lays the graph out and writes the data; ``explorer.js`` draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.report.graph_layout import CELL_HEIGHT, CELL_WIDTH, LayoutGraph, layout
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
