"""Pages of layer ranges: the machines by their first layer, with what they carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placewright.layers.flow.judge import FlowJudgement
from placewright.measurement.measurement import Measurement
from placewright.planning.result import Result
from placewright.planning.views import Data, GenericViews, preformatted, result_page
from placewright.report.page import html_fragment
from placewright.report.text import plain_table

GENERIC = GenericViews("tokens/s")
MOST_ROWS = 64


def summary(result: Result, measurement: Measurement | None = None) -> str:
    """Machines with their layers, and what they carry of what they could."""
    return f"\n{ranges_table(result.judgement)}"


def ranges_table(judged: FlowJudgement) -> str:
    """A line per range of layers and type of machine."""
    p, plan = judged.problem, judged.plan
    rows: dict[tuple[int, int, str], list[int]] = {}
    for i in range(p.n):
        if judged.carried[i] > 0:
            rows.setdefault((plan.start[i], plan.end[i], p.node_types[i]), []).append(i)
    lines = []
    for (s, e, kind), own in sorted(rows.items())[:MOST_ROWS]:
        able, carried = p.rates[own, e - s].sum(), judged.carried[own].sum()
        names = ", ".join(p.node_names[i] for i in own[:3]) + (" ..." if len(own) > 3 else "")
        lines.append(
            (f"{s} .. {e - 1}", f"{len(own)} x {kind}", names, f"{carried:.5g}", f"{able:.5g}")
        )
    idle = [p.node_names[i] for i in range(p.n) if judged.carried[i] <= 0]
    rest = f"\nwithout tokens: {', '.join(idle[:16])}{', ...' if len(idle) > 16 else ''}"
    header = ("layers", "machines", "names", "tokens/s", "of at most")
    return plain_table(header, lines, "   rr") + (rest if idle else "")


def page(
    result: Result, measurement: Measurement | None = None, graph: Any = None, run: Any = None
) -> str:
    """The page of a plan."""
    return result_page(result, _body(result), unit=GENERIC.unit)


def fragment(result: Result) -> str:
    """What a notebook shows."""
    return html_fragment(*_body(result))


def saved_page(kind: str, data: Data, path: Path) -> str:
    """The page of a problem or a plan file."""
    return GENERIC.saved_page(kind, data, path)


def parts(data: Data) -> dict[str, str]:
    """Layers of every machine in a saved plan."""
    return {name: f"{s} .. {e - 1}" for name, (s, e) in data["plan"]["placement"].items()}


def _body(result: Result) -> list[str]:
    subtitle = "Who holds which layers, and the tokens/s that pass."
    table = preformatted("Layer ranges", subtitle, ranges_table(result.judgement))
    return [*GENERIC.sections(result), table]
