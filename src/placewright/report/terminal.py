"""Tables of the command line: colours in a terminal, plain text in a pipe."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from placewright.planning.result import Candidate, Measurement, Result
from placewright.report.text import (
    candidate_cells,
    measurement_table,
    plain_table,
    result_placement_text,
    seconds,
    speed_up_text,
)

if TYPE_CHECKING:
    from rich.console import Group

    from placewright.adapt.timeline import Timeline

HEADER = ("planner", "value", "gap", "time", "status", "note")


def compare_table(result: Result, *, terminal: bool | None = None) -> Any:
    """Every candidate, best first, the chosen one marked: a rich table, or text in a pipe.

    Parameters
    ----------
    terminal
        Whether stdout is one; looked up where ``None``.
    """
    shown = sys.stdout.isatty() if terminal is None else terminal
    if not shown:
        where = result_placement_text(result)
        return "\n".join([_title(result), _plain(result), *([where] if where else [])])
    return _rich(result)


def run_table(result: Result, measured: Measurement, run: Timeline | None = None) -> str:
    """Predicted and measured seconds of the plan and of the best single device, and the run."""
    lines = [f"plan by {result.planner}", measurement_table(measured)]
    if measured.baseline is None:
        lines.append(speed_up_text(measured))
    lines.append(result_placement_text(result, measured))
    return "\n".join(lines + ([] if run is None else _run_lines(run)))


def _run_lines(run: Timeline) -> list[str]:
    """Every event of an adaptive run, and what a step took at its end."""
    from placewright.report.history import QUIET, told

    events = [f"step {e.step}: {e.kind}: {told(e)}" for e in run.events if e.kind not in QUIET] or [
        "nothing happened"
    ]
    last = f"{len(run.step_s)} steps done, the last {seconds(run.typical_s(5))} each"
    check = [] if run.check is None else [str(run.check)]
    return ["", "the run", *events, last, *check]


def _ordered(result: Result) -> list[Candidate]:
    return sorted(result.candidates, key=lambda c: (c.status == "INFEASIBLE", c.value))


def _title(result: Result) -> str:
    return (
        f"{result.problem.name}: {result.objective}, lower bound {seconds(result.lower_bound)}, "
        f"best predicted {seconds(result.value)} by {result.planner}"
    )


def _plain(result: Result) -> str:
    rows = [
        ("*" if c.planner == result.planner else "", *candidate_cells(c, result.lower_bound))
        for c in _ordered(result)
    ]
    return plain_table(("", *HEADER), rows, "  rrr")


def _rich(result: Result) -> Group:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    table.add_column("")
    for name in HEADER:
        table.add_column(name, justify="right" if name in HEADER[1:4] else "left")
    for candidate in _ordered(result):
        cells = candidate_cells(candidate, result.lower_bound)
        mark = "*" if candidate.planner == result.planner else ""
        row = [Text(cell) for cell in (mark, *cells)]
        table.add_row(*row, style=_style(candidate, result))
    where = result_placement_text(result)
    return Group(Text(_title(result)), table, *([Text(where)] if where else []))


def _style(candidate: Candidate, result: Result) -> str:
    if candidate.planner == result.planner:
        return "bold green"
    fits = math.isfinite(candidate.value) and candidate.status != "INFEASIBLE"
    return "" if fits else "dim"
