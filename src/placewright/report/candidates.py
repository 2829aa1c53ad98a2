"""Every plan that was tried, as a table with bars; the chosen one is marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from placewright.planning.result import Candidate
from placewright.report.svg import number, tag, text
from placewright.report.text import candidate_cells

EMPTY = "&#8203;"
"""A cell without text is still a cell."""

LONGEST_BAR = 3.0
"""Bars end at this many times the best value: a hopeless plan must not flatten the others."""


@dataclass(frozen=True, slots=True)
class Contest:
    """Candidates, and which of them won."""

    candidates: tuple[Candidate, ...]
    planner: str
    value: float
    lower_bound: float

    def table(self) -> str:
        """The candidates as HTML, best first, those without a plan last."""
        ordered = sorted(self.candidates, key=lambda c: (not _fits(c), c.value))
        top = _scale(ordered, self.value)
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
        rows = [self._row(c, top) for c in ordered]
        return tag("div", tag("table", tag("tr", head), *rows), class_="scroll")

    def _row(self, candidate: Candidate, top: float) -> str:
        planner, value, gap, took, _, _ = candidate_cells(candidate, self.lower_bound)
        chosen = candidate.planner == self.planner
        pill = tag("span", "chosen", class_="pill") if chosen else ""
        fits = _fits(candidate)
        unfit = math.isfinite(candidate.value) and not fits
        note = f"does not fit: {candidate.note}" if unfit else candidate.note
        return tag(
            "tr",
            tag("td", text(planner), pill, class_="who"),
            tag("td", _bar(candidate, self.lower_bound, top) or EMPTY),
            *[tag("td", text(cell), class_="num") for cell in (value, gap, took)],
            tag("td", text(note) or EMPTY, class_="note"),
            class_="chosen" if chosen else (None if fits else "out"),
        )


def _bar(candidate: Candidate, lower_bound: float, top: float) -> str:
    """Length is the value; the line across is the bound."""
    if not math.isfinite(candidate.value):
        return ""
    length = tag("i", "", style=f"width:{_percent(candidate.value, top)}")
    bound = tag("u", "", style=f"left:{_percent(lower_bound, top)}") if lower_bound > 0 else ""
    return tag("div", length, bound, class_="track")


def _scale(ordered: Sequence[Candidate], best: float) -> float:
    values = [c.value for c in ordered if math.isfinite(c.value)]
    return min(max(values, default=1.0), LONGEST_BAR * best) or 1.0


def _percent(value: float, top: float) -> str:
    return f"{number(min(100.0, 100 * value / top))}%"


def _fits(candidate: Candidate) -> bool:
    return math.isfinite(candidate.value) and candidate.status != "INFEASIBLE"
