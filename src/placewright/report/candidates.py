"""Every plan that was tried, as a table with bars; the chosen one is marked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from placewright.report.svg import number, tag, text
from placewright.report.text import candidate_cells
from placewright.result import Candidate, Result

LONGEST_BAR = 3.0
"""Bars end at this many times the best value: a hopeless plan must not flatten the others."""


def candidates_table(result: Result) -> str:
    """The candidates of a result as HTML, best first, those without a plan last."""
    ordered = sorted(result.candidates, key=lambda c: (not _fits(c), c.value))
    top = _scale(ordered, result)
    head = "".join(
        tag("th", name, class_=class_)
        for name, class_ in (
            ("planner", None),
            ("value, and the lower bound", None),
            ("value", "num"),
            ("gap", "num"),
            ("planning time", "num"),
            ("note", None),
        )
    )
    rows = [_row(c, result, top) for c in ordered]
    return tag("div", tag("table", tag("tr", head), *rows), class_="scroll")


def _row(candidate: Candidate, result: Result, top: float) -> str:
    planner, value, gap, took, _, _ = candidate_cells(candidate, result.lower_bound)
    chosen = candidate.planner == result.planner
    pill = tag("span", "chosen", class_="pill") if chosen else ""
    fits = _fits(candidate)
    note = candidate.note if fits else f"does not fit: {candidate.note}".removesuffix(": ")
    note = candidate.note if math.isinf(candidate.value) else note
    return tag(
        "tr",
        tag("td", text(planner), pill, class_="who"),
        tag("td", _bar(candidate, result.lower_bound, top) or "&#8203;"),
        *[tag("td", text(cell), class_="num") for cell in (value, gap, took)],
        tag("td", text(note) or "&#8203;", class_="note"),
        class_="chosen" if chosen else (None if fits else "out"),
    )


def _bar(candidate: Candidate, lower_bound: float, top: float) -> str:
    """Length is the value; the line across is the bound."""
    if not math.isfinite(candidate.value):
        return ""
    length = tag("i", "", style=f"width:{_percent(candidate.value, top)}")
    bound = tag("u", "", style=f"left:{_percent(lower_bound, top)}") if lower_bound > 0 else ""
    return tag("div", length, bound, class_="track")


def _scale(ordered: Sequence[Candidate], result: Result) -> float:
    values = [c.value for c in ordered if math.isfinite(c.value)]
    return min(max(values, default=1.0), LONGEST_BAR * result.value) or 1.0


def _percent(value: float, top: float) -> str:
    return f"{number(min(100.0, 100 * value / top))}%"


def _fits(candidate: Candidate) -> bool:
    return math.isfinite(candidate.value) and candidate.status != "INFEASIBLE"
