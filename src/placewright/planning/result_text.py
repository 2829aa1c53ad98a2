"""Results as text: tables of candidates."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from placewright.planning.contract import Direction
from placewright.report.text import amount, joined, percent, plain_table, seconds, shorten

if TYPE_CHECKING:
    from rich.console import Group

    from placewright.measurement.measurement import Measurement
    from placewright.planning.result import Candidate, Result

HEADER = ("planner", "value", "gap", "time", "status", "note")


def result_table(result: Result) -> str:
    """Value, bound, gap and status; every candidate, the chosen one marked; the wing's summary."""
    unit = _unit(result)
    head = (
        f"predicted {result.objective} {amount(result.value, unit)} by {result.planner}: "
        f"{bound_name(result.direction)} {amount(result.bound, unit)}, "
        f"gap {percent(result.gap)}, {result.status} in {seconds(result.runtime_s)}"
    )
    table = _candidate_table(result, result.candidates)
    return joined(head, table, result.note, summary_text(result))


def compare_table(result: Result, *, terminal: bool | None = None) -> Any:
    """Every candidate, best first, the chosen one marked: a rich table, or text in a pipe.

    Parameters
    ----------
    terminal
        Whether stdout is one; looked up where ``None``.
    """
    unit = _unit(result)
    title = (
        f"{result.problem.name}: {result.objective}, {bound_name(result.direction)} "
        f"{amount(result.bound, unit)}, best predicted {amount(result.value, unit)} "
        f"by {result.planner}"
    )
    ordered = best_first(result.candidates, result.direction)
    coloured = sys.stdout.isatty() if terminal is None else terminal
    if coloured:
        return _rich_table(result, title, ordered)
    return joined(title, _candidate_table(result, ordered), summary_text(result))


def summary_text(result: Result, measurement: Measurement | None = None) -> str:
    """The wing's own lines on a result, empty if it has none."""
    from placewright.planning.views import views_of

    return views_of(result.problem).summary(result, measurement)


def best_first(candidates: Iterable[Candidate], direction: Direction) -> list[Candidate]:
    """Candidates by value, those that do not fit last."""
    sign = 1 if direction is Direction.MINIMISE else -1
    return sorted(candidates, key=lambda c: (not c.fits, sign * c.value))


def bound_name(direction: Direction) -> str:
    """``lower bound``, or ``upper bound`` where the wing maximises."""
    return "lower bound" if direction is Direction.MINIMISE else "upper bound"


def candidate_cells(
    candidate: Candidate, bound: float, unit: str = "s", direction: Direction = Direction.MINIMISE
) -> tuple[str, ...]:
    """Planner, value, gap, time, status and note as text."""
    return (
        candidate.planner,
        amount(candidate.value, unit),
        percent(direction.gap(candidate.value, bound)),
        seconds(candidate.runtime_s),
        candidate.outcome.words,
        shorten(candidate.note),
    )


def _candidate_table(result: Result, candidates: Sequence[Candidate]) -> str:
    return plain_table(("", *HEADER), [_row(result, c) for c in candidates], "  rrr")


def _row(result: Result, candidate: Candidate) -> tuple[str, ...]:
    mark = "*" if candidate.planner == result.planner else ""
    return mark, *candidate_cells(candidate, result.bound, _unit(result), result.direction)


def _rich_table(result: Result, title: str, ordered: Sequence[Candidate]) -> Group:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    table.add_column("")
    for name in HEADER:
        table.add_column(name, justify="right" if name in HEADER[1:4] else "left")
    for candidate in ordered:
        cells = [Text(cell) for cell in _row(result, candidate)]
        table.add_row(*cells, style=_style(candidate, result))
    summary = summary_text(result)
    return Group(Text(title), table, *([Text(summary)] if summary else []))


def _style(candidate: Candidate, result: Result) -> str:
    if candidate.planner == result.planner:
        return "bold green"
    return "" if candidate.fits else "dim"


def _unit(result: Result) -> str:
    from placewright.planning.wings import wing_of

    return wing_of(result.problem).unit
