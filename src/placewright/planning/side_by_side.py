"""Two plans side by side: values and bounds, what differs between them, their timelines.

The plans may be of one problem or of two, of any wing. A wing says what its plans consist of by
`parts` of its views, and otherwise by the keys of its plan files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError
from placewright.io.boundary import validate
from placewright.planning.views import Data, saved_direction, saved_unit, wing_views
from placewright.planning.wings import families, wing_of
from placewright.report.gantt import timeline
from placewright.report.page import heading, html_page, scroll, section, tag, text
from placewright.report.text import (
    amount,
    bare_numbers,
    elapsed,
    percent,
    relative_change,
    seconds,
)
from placewright.report.trace import Trace

if TYPE_CHECKING:
    from placewright.planning.result import Result
    from placewright.planning.wing import Wing

MOST_ROWS, MOST_CHANGES = 100, 12
"""Differences in the table, and kinds of them in the sentence above it."""

LONG = 40
"""Characters of what is part of a kind of difference."""

MEASURED = "measured"
"""Titles of timelines that show a run begin with this."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of the plans.

    Attributes
    ----------
    name
        Of its file, or of its planner.
    data
        Its document, as `Result.save` or a run writes it.
    timelines
        Title and trace of each that is known.
    """

    name: str
    data: Data
    wing: Wing
    timelines: Sequence[tuple[str, Trace]] = ()

    @property
    def value(self) -> float:
        """What was predicted; infinite where the document does not say."""
        return _number(self.data.get("value", self.data.get("predicted_s")))

    @property
    def bound(self) -> float:
        """No plan of its problem is better; infinite where that is not known."""
        direction = saved_direction(self.data)
        return _number(self.data.get(direction.bound_name.replace(" ", "_")))

    @property
    def objective(self) -> str:
        """What its value means; empty where the document does not say."""
        return str(self.data.get("objective") or "")

    @property
    def dimensionless(self) -> bool:
        """Whether the times of its problem have no unit."""
        plan = self.data.get("plan")
        return isinstance(plan, Mapping) and bool(plan.get("dimensionless"))

    @property
    def measured_s(self) -> float:
        """What was measured, if anything."""
        return _number(self.data.get("measured_s"))

    def parts(self) -> Mapping[str, str]:
        """What the plan decides: a name of each part, and what it decides for it."""
        own: Callable[[Data], Mapping[str, str]] | None
        own = getattr(wing_views(self.wing), "parts", None)
        return dict(_leaves(self.data["plan"])) if own is None else own(self.data)


def side_of(result: Result, name: str = "") -> Side:
    """A result as a side."""
    wing, trace = wing_of(result.problem), result.judgement.trace()
    timelines = [] if trace is None else [("predicted timeline", trace)]
    return Side(name or result.planner, result.as_json(), wing, timelines)


def side_of_data(
    data: Data, name: str, timelines: Sequence[tuple[str, Trace]] | None = None
) -> Side:
    """A plan file's data as a side; its timelines as far as they are in it, where none are given.

    Raises `InputError`: it holds no plan, or a field of it is wrong.
    """
    found = [wing for _, wing in families() if wing.files().plan_document.matches(data)]
    if not found:
        raise InputError(
            "holds no plan",
            where=name,
            by=f"its keys: {', '.join(list(data)[:8]) or 'none'}",
            hint="give what `plan -o` or `run -o` has written",
        )
    found.sort(key=lambda wing: -len(wing.files().plan_document.keys))
    model = found[0].files().plan_document.model
    validate(model, {k: v for k, v in data.items() if k in model.model_fields}, where=name)
    saved = getattr(wing_views(found[0]), "saved_trace", None)
    if timelines is None and saved is not None and data["plan"].get("schedule"):
        timelines = [("predicted timeline", saved(data, name))]
    return Side(name, data, found[0], timelines or ())


def side_by_side_page(first: Side, second: Side) -> str:
    """The self-contained page."""
    title = f"{first.name} beside {second.name}"
    head = heading(title, "two plans side by side", verdict(first, second))
    return html_page(title, head, *side_by_side(first, second))


TWO_PROBLEMS = (
    "They are plans of two problems: where each was measured by itself, times differ for that, too."
)


def verdict(first: Side, second: Side) -> str:
    """Which is better by how much (markup), where the two can be compared."""
    if first.wing.name != second.wing.name:
        return (
            f"One plans {text(first.wing.title)}, the other {text(second.wing.title)}: their "
            "values do not compare."
        )
    if not _comparable(first, second):
        return (
            f"The objective of one is {text(first.objective)}, that of the other "
            f"{text(second.objective)}: their values do not compare."
        )
    said = "" if _one_problem(first, second) else f" {TWO_PROBLEMS}"
    if not (math.isfinite(first.value) and math.isfinite(second.value)):
        return f"What one of them is worth is not known.{said}"
    if first.value == second.value:
        return f"Both are predicted to be worth the same.{said}"
    direction = saved_direction(first.data)
    good, bad = first, second
    if direction.better(second.value, first.value):
        good, bad = second, first
    low, high = sorted((abs(good.value), abs(bad.value)))
    whose = "its" if abs(good.value) == high else "the other one's"
    times = f": {whose} value is <b>{percent(high / low - 1)}</b> higher" if low > 0 else ""
    better = f"<b>{text(good.name)}</b> is predicted to be the better one{times}."
    return f"{better}{_run(first, second)}{said}"


def side_by_side(first: Side, second: Side) -> Iterator[str]:
    """The sections of the page, of which none has a style or a script of its own."""
    yield section("Values", "", scroll(_values(first, second)))
    yield _differences(first, second)
    yield from _timelines(first, second)


def _comparable(first: Side, second: Side) -> bool:
    """Whether both values mean the same, as far as the documents say."""
    named = {side.objective for side in (first, second)} - {""}
    return first.wing.name == second.wing.name and len(named) < 2


def _one_problem(first: Side, second: Side) -> bool:
    hashes = {side.data.get("problem_hash") for side in (first, second)}
    return len(hashes) == 1 and hashes != {None}


def _run(first: Side, second: Side) -> str:
    if not (math.isfinite(first.measured_s) and math.isfinite(second.measured_s)):
        return ""
    good, bad = sorted((first, second), key=lambda side: side.measured_s)
    by = percent(bad.measured_s / good.measured_s - 1) if good.measured_s else "-"
    return f" Measured, <b>{text(good.name)}</b> is, by <b>{by}</b>."


def _values(first: Side, second: Side) -> str:
    def told(name: str, show: Callable[[Side], str]) -> tuple[str, str, str, str]:
        return name, show(first), show(second), ""

    def worth(name: str, of: Callable[[Side], float], unit: str = "") -> Any:
        one, other = of(first), of(second)
        cells = (amount(of(side), unit or saved_unit(side.data)) for side in (first, second))
        comparable = _comparable(first, second) and one and math.isfinite(one)
        return name, *cells, relative_change(other, one) if comparable else ""

    def field(key: str) -> Callable[[Side], str]:
        return lambda side: str(side.data.get(key) or "-")

    rows = [
        told("problem", field("problem")),
        told("objective", field("objective")),
        told("planner", field("planner")),
        worth("predicted", lambda side: side.value),
        worth("no plan is better than", lambda side: side.bound),
        told("gap", lambda side: percent(_number(side.data.get("gap")))),
        told("status", lambda side: field("status")(side).lower()),
        worth("measured", lambda side: side.measured_s, "s"),
        told("planned in", lambda side: elapsed(_number(side.data.get("runtime_s")))),
    ]
    shown = [row for row in rows if {row[1], row[2]} != {"-"}]
    return _table(("what", first.name, second.name, "change"), shown, numbers=True)


def _differences(first: Side, second: Side) -> str:
    if first.wing.name != second.wing.name:
        return ""
    one, other = first.parts(), second.parts()
    names = list(dict.fromkeys((*one, *other)))
    rows = [
        (name, one.get(name, "-"), other.get(name, "-"))
        for name in names
        if one.get(name) != other.get(name)
    ]
    if not rows:
        return section("What differs", f"Nothing: all {len(names)} parts are the same.")
    header = ("part", first.name, second.name)
    lead = f"{len(rows)} of {len(names)} parts differ{_kinds(rows)}."
    more = rows[MOST_ROWS : 20 * MOST_ROWS]
    rest = len(rows) - MOST_ROWS - len(more)
    summary = tag("summary", f"{len(more)} more")
    return section(
        "What differs",
        lead,
        scroll(_table(header, rows[:MOST_ROWS])),
        tag("details", summary, scroll(_table(header, more))) if more else "",
        tag("p", f"and {rest} more") if rest > 0 else "",
    )


def _kinds(rows: Sequence[tuple[str, str, str]]) -> str:
    """How many changed from what to what, where that are few kinds."""
    kinds = Counter((then, now) for _, then, now in rows if max(len(then), len(now)) <= LONG)
    if not kinds or len(kinds) > MOST_CHANGES or sum(kinds.values()) < len(rows):
        return ""
    words = (f"{count} from {then} to {now}" for (then, now), count in kinds.most_common())
    return f": {', '.join(words)}"


def _timelines(first: Side, second: Side) -> Iterator[str]:
    """All of both to one scale, those that were measured below."""
    every = [
        (title.startswith(MEASURED), side, trace)
        for side in (first, second)
        for title, trace in side.timelines
    ]
    if not every:
        return
    every.sort(key=lambda entry: entry[0])
    until = max(trace.duration_s for *_, trace in every)
    parts = []
    for measured, side, trace in every:
        words = f"{side.name}, {'measured' if measured else 'predicted'}"
        with bare_numbers(side.dimensionless):
            # No value of the plan: a timeline may have one sample of a stream, or transfers in
            # turns.
            length = text(f" timeline over {seconds(trace.duration_s)}")
            parts.append(tag("h3", tag("b", text(words)), length))
            parts.append(timeline(trace, title=words, until_s=until))
    yield section("Timelines", "To one scale; they zoom and move together.", *parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """Cells as text; `numbers`: those behind the first column are flush right."""
    class_ = "num" if numbers else None
    head = [
        tag("th", text(x), scope="col", class_=class_ if k else None) for k, x in enumerate(header)
    ]
    body = [
        tag(
            "tr",
            tag("td", text(row[0]), class_="who"),
            *[tag("td", text(cell) or "&#8203;", class_=class_) for cell in row[1:]],
        )
        for row in rows
    ]
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_="beside")


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every number and text in a document by the path of its keys."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for k, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{k}]")
    else:
        yield (
            path,
            "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value),
        )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.inf
