"""Tables of the command line: colours in a terminal, plain text in a pipe."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from placewright.report.text import candidate_cells, percent, plain_table, seconds
from placewright.result import Candidate, Measurement, Result

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
        return f"{_title(result)}\n{_plain(result)}"
    return _rich(result)


def run_table(
    result: Result,
    measured: Measurement,
    baseline: tuple[str, Measurement] | None,
    run: Timeline | None = None,
) -> str:
    """Predicted and measured seconds of the plan and of the best single device, and the run."""
    rows = [_run_row(f"plan ({result.planner})", measured)]
    if baseline is not None:
        rows.append(_run_row(f"{baseline[0]} alone", baseline[1]))
    lines = [
        f"{measured.engine}; emulated: {measured.emulated or 'nothing'}",
        plain_table(("", "predicted", "measured", "error"), rows, " rrr"),
        _speed_up(measured, baseline),
    ]
    if measured.check is not None:
        lines.append(str(measured.check))
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


def _run_row(name: str, taken: Measurement) -> tuple[str, ...]:
    error = taken.predicted_s / taken.measured_s - 1
    return name, seconds(taken.predicted_s), seconds(taken.measured_s), percent(error)


def _speed_up(measured: Measurement, baseline: tuple[str, Measurement] | None) -> str:
    if baseline is None:
        return "no single device fits the model"
    if baseline[1] is measured:
        return f"the plan is {baseline[0]} alone: splitting does not pay"
    times = baseline[1].measured_s / measured.measured_s
    return f"{times:.2f} times as fast as {baseline[0]}, the best single device that fits"


def _ordered(result: Result) -> list[Candidate]:
    return sorted(result.candidates, key=lambda c: (c.status == "INFEASIBLE", c.value))


def _title(result: Result) -> str:
    return (
        f"{result.problem.name}: {result.objective}, lower bound {seconds(result.lower_bound)}, "
        f"best {seconds(result.value)} by {result.planner}"
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
    return Group(Text(_title(result)), table)


def _style(candidate: Candidate, result: Result) -> str:
    if candidate.planner == result.planner:
        return "bold green"
    fits = math.isfinite(candidate.value) and candidate.status != "INFEASIBLE"
    return "" if fits else "dim"
