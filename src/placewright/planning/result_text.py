"""Results as text: tables of candidates."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from placewright.planning.candidates import (
    Candidate,
    Outcome,
    any_measured,
    best_first,
    candidate_cells,
    short_list,
)
from placewright.planning.views import baselines_of, views_of
from placewright.report.text import amount, elapsed, joined, percent, plain_table

if TYPE_CHECKING:
    from rich.console import Group

    from placewright.measurement.measurement import Measurement
    from placewright.planning.result import Result

HEADER = ("planner", "value", "gap", "time", "status", "note")


def result_table(result: Result) -> str:
    """Value, bound, gap and status; the first candidates of many; the wing's summary."""
    unit = result.unit
    compiled = f", {elapsed(result.compile_s)} of it for compiling" if result.compile_s > 1 else ""
    head = (
        f"predicted {result.objective} {amount(result.value, unit)} by {result.planner}: "
        f"{result.direction.bound_name} {amount(result.bound, unit)}, "
        f"gap {percent(result.gap)}, {result.status} in {elapsed(result.runtime_s)}{compiled}"
    )
    shown, rest = short_list(
        result.candidates, result.planner, baselines_of(result.problem), result.direction
    )
    chosen_first = shown if rest else result.candidates
    more = f"   ... and {len(rest)} more: {_outcomes(rest)}; compare lists all" if rest else ""
    table = _candidate_table(result, chosen_first)
    return joined(head, table, more, result.note, summary_text(result))


def _outcomes(candidates: Sequence[Candidate]) -> str:
    """``3 fits, 10 unsupported``."""
    count = Counter(c.outcome.words for c in candidates)
    return ", ".join(f"{number} {words}" for words, number in count.items())


def compare_table(result: Result, *, terminal: bool | None = None) -> Any:
    """Every candidate, best first, the chosen one marked: a rich table, or text in a pipe.

    Planners that cannot take the problem are no rows; a line below names them, with the reason.
    `terminal`: whether stdout is one; looked up where ``None``.
    """
    unit = result.unit
    title = (
        f"{result.problem.name}: {result.objective}, {result.direction.bound_name} "
        f"{amount(result.bound, unit)}, chosen {amount(result.value, unit)} by {result.planner}"
    )
    able = [c for c in result.candidates if c.outcome is not Outcome.UNSUPPORTED]
    ordered, below = best_first(able, result.direction), not_applicable(result.candidates)
    coloured = sys.stdout.isatty() if terminal is None else terminal
    if coloured:
        return _rich_table(result, title, ordered, below)
    table = _candidate_table(result, ordered)
    return joined(title, table, below, result.note, summary_text(result))


def not_applicable(candidates: Sequence[Candidate]) -> str:
    """Planners that cannot take the problem, by their reasons; a line each."""
    names: dict[str, list[str]] = {}
    for candidate in candidates:
        if candidate.outcome is Outcome.UNSUPPORTED:
            names.setdefault(candidate.note, []).append(candidate.planner)
    lines = (f"   {', '.join(some)} ({reason})" for reason, some in names.items())
    return joined("do not apply:" if names else "", *lines)


def summary_text(result: Result, measurement: Measurement | None = None) -> str:
    """The wing's own lines on a result, empty if it has none."""
    return views_of(result.problem).summary(result, measurement)


def _candidate_table(result: Result, candidates: Sequence[Candidate]) -> str:
    measured = any_measured(result.candidates)
    header = ("", *_header(measured))
    return plain_table(
        header, [_row(result, c, measured) for c in candidates], "  rrrr" if measured else "  rrr"
    )


def _header(measured: bool) -> tuple[str, ...]:
    return (*HEADER[:2], "measured", *HEADER[2:]) if measured else HEADER


def _row(result: Result, candidate: Candidate, measured: bool) -> tuple[str, ...]:
    mark = "*" if candidate.planner == result.planner else ""
    cells = candidate_cells(candidate, result.bound, result.unit, result.direction)
    took = (elapsed(candidate.measured_s),) if measured else ()
    return mark, *cells[:2], *took, *cells[2:]


def _rich_table(result: Result, title: str, ordered: Sequence[Candidate], unable: str) -> Group:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    table.add_column("")
    measured = any_measured(ordered)
    for name in _header(measured):
        numbers = name in (*HEADER[1:4], "measured")
        table.add_column(name, justify="right" if numbers else "left")
    for candidate in ordered:
        cells = [Text(cell) for cell in _row(result, candidate, measured)]
        table.add_row(*cells, style=_style(candidate, result))
    below = joined(unable, result.note, summary_text(result))
    return Group(Text(title), table, *([Text(below)] if below else []))


def _style(candidate: Candidate, result: Result) -> str:
    if candidate.planner == result.planner:
        return "bold green"
    return "" if candidate.fits else "dim"
