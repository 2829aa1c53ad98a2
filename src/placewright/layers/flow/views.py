"""Pages of layer ranges: the machines by their first layer, with what they carry."""

from __future__ import annotations

from collections.abc import Iterator

from placewright.layers.flow.judge import FlowJudgement
from placewright.measurement import Measurement
from placewright.planning.result import Result
from placewright.planning.views import Data, GenericViews, preformatted
from placewright.report.text import plain_table

MOST_ROWS = 64


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


class FlowViews(GenericViews):
    """How plans of layer ranges are shown."""

    def summary(self, result: Result, measurement: Measurement | None = None) -> str:
        """Machines with their layers, and what they carry of what they could."""
        return f"\n{ranges_table(result.judgement)}"

    def sections(self, result: Result) -> Iterator[str]:
        """The usual ones, and who holds which layers."""
        yield from super().sections(result)
        subtitle = "Who holds which layers, and the tokens/s that pass."
        yield preformatted("Layer ranges", subtitle, ranges_table(result.judgement))

    def parts(self, data: Data) -> dict[str, str]:
        """Layers of every machine in a saved plan."""
        return {name: f"{s} .. {e - 1}" for name, (s, e) in data["plan"]["placement"].items()}


VIEWS = FlowViews("tokens/s")
