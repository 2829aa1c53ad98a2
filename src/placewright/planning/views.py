"""Results as tables and pages: parts that every wing shares, whole pages for wings without own.

A wing with views of its own composes its pages of these parts and of `placewright.report`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.measurement import Measurement
from placewright.numerics.arrays import FloatArray
from placewright.planning.candidates import (
    Candidate,
    Outcome,
    Status,
    any_measured,
    best_first,
    candidate_cells,
    short_list,
)
from placewright.planning.contract import Direction
from placewright.planning.wings import wing_of
from placewright.report.gantt import timeline
from placewright.report.page import (
    definitions,
    device_class,
    drawing,
    facts,
    heading,
    html_fragment,
    html_page,
    label,
    number,
    scroll,
    section,
    tag,
    text,
)
from placewright.report.text import (
    amount,
    elapsed,
    joined,
    percent,
    plain_table,
    printable,
    seconds,
    size,
)

if TYPE_CHECKING:
    from rich.console import Group

    from placewright.planning.result import Result
    from placewright.planning.wing import Views, Wing
    from placewright.report.trace import MemoryCurve, Trace


Data = dict[str, Any]
"""A plan file that its wing's schema has accepted."""

Fact = tuple[str, str, str]

EMPTY = "&#8203;"
"""A cell without text is still a cell."""

LONGEST_BAR = 3.0
"""Bars end at this many times the best value: a hopeless plan must not flatten the others."""


def views_of(problem: Any) -> Views:
    """The views of the wing that takes `problem`."""
    return wing_views(wing_of(problem))


def baselines_of(problem: Any) -> Sequence[str]:
    """Names of the planners that the wing compares plans of `problem` with."""
    return wing_of(problem).planning().baselines(problem)


def wing_views(wing: Wing) -> Views:
    """The wing's own views, or generic ones."""
    return GenericViews() if wing.views is None else wing.views()


class GenericViews:
    """Views of a wing that has none of its own: value, bound, timeline, candidates, provenance.

    A wing that only adds to them inherits this, and overrides `sections`.
    """

    def summary(self, result: Result, measurement: Measurement | None = None) -> str:
        """Nothing beside the candidates."""
        return ""

    def page(
        self,
        result: Result,
        measurement: Measurement | None = None,
        graph: Any = None,
        run: Any = None,
    ) -> str:
        """The page of a result."""
        return result_page(result, self.sections(result))

    def fragment(self, result: Result) -> str:
        """Value, bound and timeline."""
        return html_fragment(*self.sections(result))

    def saved_page(self, kind: str, data: Data, path: Path) -> str:
        """The page of a problem or a plan: its facts, and the rest as it is written."""
        return plain_saved_page(kind, data, path)

    def sections(self, result: Result) -> Iterator[str]:
        """Verdict and facts of a result, and its timeline if it has one."""
        yield heading(result.problem.name, f"{result.objective} plan", value_sentence(result))
        yield facts(result_facts(result))
        trace = result.judgement.trace()
        if trace is not None:
            yield section("Timeline", "", timeline(trace, title="predicted timeline"))
            yield memory_section(trace)


def result_page(
    result: Result,
    body: Iterable[str],
    *,
    headline: str = "",
    more: dict[str, str] | None = None,
) -> str:
    """The page of a result: the wing's parts, then candidates and provenance.

    `headline`: in the title after the problem's name; the value by default.
    `more`: what the wing adds to the provenance.
    """
    return html_page(
        f"{result.problem.name}: {headline or amount(result.value, result.unit)}",
        *body,
        *(made(result) for made in SECTIONS),
        provenance_section(provenance(result) | (more or {})),
    )


def plain_saved_page(
    kind: str,
    data: Data,
    path: Path,
    *,
    title: str = "Plan",
    most: int | None = None,
) -> str:
    """The page of a problem or a plan file, as it is written.

    `title`: of the section with the plan.
    `most`: characters of a problem that are shown.
    """
    if "plan" not in data:
        return text_page(path.stem, kind, path, json.dumps(data, indent=2)[:most])
    body = json.dumps(data["plan"], indent=2)
    return saved_plan_page(data, path, kind, [preformatted(title, "", body)])


def result_facts(result: Result) -> Iterator[Fact]:
    """Value, bound, gap, status, planner and planning time."""
    yield "predicted", amount(result.value, result.unit), "lead"
    yield result.direction.bound_name, _known_bound(result), ""
    yield "gap", percent(result.gap), ""
    yield "status", str(result.status), "good" if result.status == "OPTIMAL" else ""
    yield "planner", result.planner, ""
    yield "planned in", elapsed(result.runtime_s), ""
    if result.compile_s > 1:
        yield COMPILING, elapsed(result.compile_s), ""


COMPILING = "of it compiling"


def value_sentence(result: Result) -> str:
    """What the plan is worth by its objective, and what is proved (markup)."""
    value = f"<b>{text(amount(result.value, result.unit))}</b>"
    return f"Predicted {text(result.objective)}: {value}. {bound_sentence(result)}"


def bound_sentence(result: Result) -> str:
    """What is proved about the plan under the costs it was made with (markup).

    It is about the prediction, and must stand behind it, not behind what was measured.
    """
    if not _has_bound(result):
        return f"No {result.direction.bound_name} is known."
    if result.status is Status.OPTIMAL or result.gap <= 1e-9:
        return "Under the costs it was planned with, it is proved to be the best possible plan."
    better = "faster" if result.unit == "s" else "better"
    limit = text(amount(result.bound, result.unit))
    return f"Under these costs no plan can be {better} than {limit}."


def _known_bound(result: Result) -> str:
    return amount(result.bound, result.unit) if _has_bound(result) else "-"


def _has_bound(result: Result) -> bool:
    """Whether anything is known of what no plan can beat."""
    return math.isfinite(result.bound) and result.bound != result.direction.unproved


def memory_section(trace: Trace) -> str:
    """A chart of held bytes for every device that has a curve; empty without one."""
    if not trace.memory:
        return ""
    subtitle = "Weights and state that stay, and tensors while they are needed."
    return section("Memory", subtitle, tag("div", memory_charts(trace), class_="charts"))


def candidates_section(result: Result) -> str:
    """All plans that were tried, empty where it was one."""
    if len(result.candidates) < 2:
        return ""
    table = CandidateTable(
        result.candidates,
        result.planner,
        result.value,
        result.bound,
        result.unit,
        result.direction,
        tuple(baselines_of(result.problem)),
    )
    subtitle = "Every plan that was found, valued by the same judge. The line is the bound."
    why = f" {result.note[:1].upper()}{result.note[1:]}." if result.note else ""
    return section("Candidates", subtitle + why, table.html())


SECTIONS: tuple[Callable[[Result], str], ...] = (candidates_section,)
"""Of a result: what every wing's page shows between the wing's own and provenance."""


def provenance(result: Result) -> dict[str, str]:
    """What is needed to get the same result again, and the bounds."""
    origin, unit = result.provenance, result.unit
    return {
        "problem": result.problem.name,
        "problem hash": origin.problem_hash,
        "seed": str(origin.seed),
        "placewright": origin.placewright,
        "python": origin.python,
        **{f"bound: {name}": amount(value, unit) for name, value in result.bound_names.items()},
    }


def provenance_section(entries: dict[str, str]) -> str:
    """`provenance`, and what a wing adds to it."""
    return section(
        "Provenance", "What is needed to get the same answer again.", definitions(entries)
    )


def preformatted(title: str, subtitle: str, table: str) -> str:
    """A section with a plain-text table."""
    return section(title, subtitle, tag("pre", text(table), class_="scroll", tabindex=0))


def text_page(name: str, kind: str, path: Path, table: str) -> str:
    """The page of a file that is shown as the text of its object."""
    title = heading(name, f"{kind}, from {path.name}")
    return html_page(name, title, preformatted(kind.capitalize(), "", table))


def saved_name(data: Data, path: Path) -> str:
    """The problem of a saved plan, else the file."""
    return str(data.get("problem") or path.stem)


def saved_plan_page(data: Data, path: Path, kind: str, sections: Iterable[str]) -> str:
    """The page of a plan file: facts, the wing's sections, candidates, provenance."""
    name = saved_name(data, path)
    entries = {k: str(v) for k, v in data.items() if not isinstance(v, dict | list)}
    return html_page(
        f"{name}: {amount(_number(data.get('value')), saved_unit(data))}",
        heading(name, f"{kind}, from {path.name}"),
        facts(saved_facts(data)),
        *sections,
        saved_candidates_section(data),
        section("Provenance", "", definitions(entries)),
    )


def saved_facts(data: Data) -> Iterator[Fact]:
    """`result_facts` of a plan file, as far as it has them."""
    direction, status = saved_direction(data), str(data.get("status", "-"))
    unit = saved_unit(data)
    yield "predicted", amount(_number(data.get("value")), unit), "lead"
    yield direction.bound_name, amount(_saved_bound(data, direction), unit), ""
    yield "gap", percent(_number(data.get("gap"))), ""
    yield "status", status, "good" if status == "OPTIMAL" else ""
    yield "planner", str(data.get("planner", "-")), ""
    for key, name, least_s in (("runtime_s", "planned in", 0), ("compile_s", COMPILING, 1)):
        if math.isfinite(taken_s := _number(data.get(key))) and taken_s >= least_s:
            yield name, elapsed(taken_s), ""


def saved_candidates(data: Data) -> tuple[Candidate, ...]:
    """The candidates of a plan file, in its order."""
    return tuple(
        Candidate(
            str(c["planner"]),
            _number(c["value"]),
            _outcome(c),
            _number(c["runtime_s"]),
            str(c.get("note", "")),
            measured_s=_number(c.get("measured_s")),
        )
        for c in data.get("candidates") or []
    )


def saved_candidates_section(data: Data) -> str:
    """`candidates_section` of a plan file."""
    tried = saved_candidates(data)
    if len(tried) < 2:
        return ""
    value, direction = _number(data.get("value")), saved_direction(data)
    bound = _saved_bound(data, direction)
    planner = str(data.get("planner", ""))
    baselines = tuple(str(c["planner"]) for c in data["candidates"] if c.get("baseline"))
    unit = saved_unit(data)
    table = CandidateTable(tried, planner, value, bound, unit, direction, baselines)
    note = str(data.get("note") or "")
    why = f" {note[:1].upper()}{note[1:]}." if note else ""
    return section(
        "Candidates", "Every plan that was found, valued by the same judge." + why, table.html()
    )


def saved_sections(data: Data) -> Iterator[str]:
    """Facts and candidates of a plan file, without facts where it has no value."""
    if isinstance(data.get("value"), int | float):
        yield section("Result", data.get("note") or "", facts(saved_facts(data)))
    yield saved_candidates_section(data)


def _outcome(entry: Data) -> Outcome:
    """Of a saved candidate; files of version 0.1 have only its status."""
    if entry.get("outcome") is not None:
        return Outcome(entry["outcome"])
    if Status(entry["status"]) is Status.FEASIBLE:
        return Outcome.FITS
    return Outcome.UNSUPPORTED if entry["value"] is None else Outcome.DOES_NOT_FIT


def saved_direction(data: Data) -> Direction:
    """Whether the values of a plan file are minimised or maximised."""
    return Direction(data.get("direction", Direction.MINIMISE))


def saved_unit(data: Data) -> str:
    """The unit of the values of a plan file; those of version 0.1 without one are in seconds."""
    return str(data.get("unit", "s"))


def _saved_bound(data: Data, direction: Direction) -> float:
    minimised = direction is Direction.MINIMISE
    return _number(data.get("lower_bound" if minimised else "upper_bound"))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.inf


@dataclass(frozen=True, slots=True)
class CandidateTable:
    """Candidates with bars; the chosen one is marked, and of many the first are shown.

    `baselines`: names of planners that are shown in any case.
    """

    candidates: tuple[Candidate, ...]
    planner: str
    value: float
    bound: float
    unit: str = "s"
    direction: Direction = Direction.MINIMISE
    baselines: tuple[str, ...] = ()

    def html(self) -> str:
        """The candidates, best first; the others, and those without a plan, on request."""
        named = (self.candidates, self.planner, self.baselines, self.direction)
        shown, rest = short_list(*named)
        if not rest:
            return self._table(shown)
        summary = tag("summary", f"{len(rest)} more, {sum(c.fits for c in rest)} of them fit")
        return self._table(shown) + tag("details", summary, self._table(rest))

    def _table(self, ordered: Sequence[Candidate]) -> str:
        top = _scale(best_first(self.candidates, self.direction), self.value)
        head = "".join(
            tag("th", name, class_=class_)
            for name, class_ in (
                ("planner", None),
                (f"value, and the {self.direction.bound_name}", None),
                ("value", "num"),
                *([("measured", "num")] if any_measured(self.candidates) else []),
                ("gap", "num"),
                ("planning time", "num"),
                ("note", None),
            )
        )
        return scroll(tag("table", tag("tr", head), *[self._row(c, top) for c in ordered]))

    def _row(self, candidate: Candidate, top: float) -> str:
        cells = candidate_cells(candidate, self.bound, self.unit, self.direction)
        planner, value, *numbers = cells[:4]
        if any_measured(self.candidates):
            numbers.insert(0, elapsed(candidate.measured_s))
        chosen = candidate.planner == self.planner
        pill = tag("span", "chosen", class_="pill") if chosen else ""
        unfit = math.isfinite(candidate.value) and not candidate.fits
        note = f"does not fit: {candidate.note}" if unfit else candidate.note
        return tag(
            "tr",
            tag("td", text(planner), pill, class_="who"),
            tag("td", self._bar(candidate, top) or EMPTY),
            *[tag("td", text(cell), class_="num") for cell in (value, *numbers)],
            tag("td", text(note) or EMPTY, class_="note"),
            class_="chosen" if chosen else (None if candidate.fits else "out"),
        )

    def _bar(self, candidate: Candidate, top: float) -> str:
        """Length is the value; the line across is the bound."""
        if not math.isfinite(candidate.value):
            return ""
        # Drawn, since the pages of the service let no element have a style of its own.
        length = tag("rect", width=_percent(candidate.value, top), height="100%", rx=3)
        x, line = _percent(self.bound, top), ""
        if 0 < self.bound < math.inf:
            line = tag("line", x1=x, x2=x, y1=-3, y2=13)
        return tag("svg", length, line, class_="track", aria_hidden="true")


def _scale(ordered: Sequence[Candidate], best: float) -> float:
    values = [c.value for c in ordered if math.isfinite(c.value)]
    return min(max(values, default=1.0), LONGEST_BAR * best) or 1.0


def _percent(value: float, top: float) -> str:
    return f"{number(min(100.0, 100 * value / top))}%"


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 540.0, 150.0, 12.0, 12.0, 26.0, 20.0
COLUMNS = 500
FAR = 0.2
"""A peak below this part of the capacity is drawn to its own scale."""


def memory_charts(trace: Trace) -> str:
    """All devices' curves as SVG, to one time scale."""
    until = trace.duration_s or 1.0
    return "".join(_chart(trace, curve, until) for curve in trace.memory)


def _chart(trace: Trace, curve: MemoryCurve, until: float) -> str:
    name, peak = trace.tracks[curve.track], float(curve.held_bytes.max(initial=0.0))
    limited = math.isfinite(curve.capacity_bytes)
    near = limited and peak > FAR * curve.capacity_bytes
    top = max(curve.capacity_bytes * 1.06 if near else peak * 2, peak * 1.06, 1.0)
    capacity = _capacity(curve.capacity_bytes, top) if near else _far_capacity(curve, limited)
    share = f" of {size(curve.capacity_bytes)}" if limited else ""
    picture = drawing(
        WIDTH,
        HEIGHT,
        label(LEFT, 16, name, "name"),
        label(WIDTH - RIGHT, 16, f"peak {size(peak)}{share}", "busy", "end"),
        tag("path", d=_area(curve, until, top), class_="span"),
        tag(
            "line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="grid"
        ),
        label(LEFT, HEIGHT - 6, "0", "tick"),
        label(WIDTH - RIGHT, HEIGHT - 6, seconds(until), "tick", "end"),
        capacity,
        title=f"memory of {name}: peak {size(peak)}{share}",
    )
    tip = f"{name}: peak {size(peak)}{share}"
    tip += f" ({percent(peak / curve.capacity_bytes)})" if limited else ""
    return tag(
        "figure", picture, class_=device_class(curve.track), data_device=curve.track, data_tip=tip
    )


def _capacity(capacity: float, top: float) -> str:
    y = _y(capacity, top)
    return tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="capacity") + label(
        LEFT + 4, y + 13, f"capacity {size(capacity)}", "tick"
    )


def _far_capacity(curve: MemoryCurve, limited: bool) -> str:
    """A label for a capacity that would flatten the curve if it was drawn."""
    words = f"far below its {size(curve.capacity_bytes)}" if limited else "no limit"
    return label(LEFT + 4, TOP + 13, words, "tick")


def _area(curve: MemoryCurve, until: float, top: float) -> str:
    """A stepped area; each column of pixels shows the most that was held in it."""
    held = column_peaks(curve.times_s, curve.held_bytes, until)
    step = (WIDTH - LEFT - RIGHT) / len(held)
    path, last = [f"M{number(LEFT)} {number(HEIGHT - BOTTOM)}"], ""
    for k, value in enumerate(held.tolist()):
        y = number(_y(value, top))
        if y != last:
            path.append(f"H{number(LEFT + k * step)}V{y}")
            last = y
    return "".join([*path, f"H{number(WIDTH - RIGHT)}V{number(HEIGHT - BOTTOM)}Z"])


def column_peaks(times_s: FloatArray, held: FloatArray, until: float) -> FloatArray:
    """Most bytes held in each of `COLUMNS` equal parts of ``[0, until]``."""
    edges = np.linspace(0.0, until, COLUMNS + 1)[:-1]
    at_edge = np.searchsorted(times_s, edges, side="right") - 1
    peaks = np.where(at_edge >= 0, held[np.maximum(at_edge, 0)], 0.0) if len(held) else 0 * edges
    column = np.clip((times_s / until * COLUMNS).astype(np.int64), 0, COLUMNS - 1)
    np.maximum.at(peaks, column, held)
    return peaks


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)


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
        cells = [Text(printable(cell)) for cell in _row(result, candidate, measured)]
        table.add_row(*cells, style=_style(candidate, result))
    below = joined(unable, result.note, summary_text(result))
    return Group(Text(printable(title)), table, *([Text(printable(below))] if below else []))


def _style(candidate: Candidate, result: Result) -> str:
    if candidate.planner == result.planner:
        return "bold green"
    return "" if candidate.fits else "dim"
