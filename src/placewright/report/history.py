"""The history of a run: step times coloured by plan, with a mark for every event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from placewright.report.page import drawing, label, number, tag, text, ticks
from placewright.report.text import percent, seconds, size

if TYPE_CHECKING:
    from placewright.adapt.timeline import Event, Timeline

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1100.0, 280.0, 64.0, 40.0, 24.0, 28.0

QUIET = ("snapshot",)
"""Kinds of events that are neither drawn nor listed."""


def history(timeline: Timeline) -> str:
    """Step times as dots, coloured by plan, with a line for each event; and the list of events."""
    times = np.asarray(timeline.step_s)
    if not len(times):
        return tag("p", "No step was done.")
    top = float(np.quantile(times, 0.99)) * 1.25
    first = timeline.first_step
    listed = [e for e in timeline.events if e.kind not in QUIET]
    dots = [
        tag(
            "circle",
            cx=_x(k, len(times)),
            cy=_y(min(float(t), top), top),
            r=2.5,
            class_=f"span d{(timeline.plan[k] - 1) % 8}",
            data_tip=f"step {first + k + 1}: {seconds(float(t))}, plan {timeline.plan[k]}",
        )
        for k, t in enumerate(times)
    ]
    picture = drawing(
        WIDTH,
        HEIGHT,
        *_axes(first, len(times), top),
        *[_mark(event, first, len(times)) for event in listed],
        *dots,
        title="step times of the run",
    )
    return picture + _table(listed)


def _axes(first: int, steps: int, top: float) -> list[str]:
    lines = []
    for value in ticks(top):
        y = _y(value, top)
        lines.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        lines.append(label(LEFT - 6, y + 4, seconds(value) if value else "0", "tick", "end"))
    for step in ticks(float(steps)):
        x = _x(step, steps)
        lines.append(label(x, HEIGHT - 8, f"step {first + int(step)}", "tick", "middle"))
    return lines


def _mark(event: Event, first: int, steps: int) -> str:
    x = _x(event.step - first, steps)
    line = tag("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="capacity")
    return line + label(x + 3, TOP - 6, str(event.kind), "tick")


def _table(events: list[Event]) -> str:
    if not events:
        return tag("p", "Nothing happened: one plan from the first step to the last.")
    head = tag("tr", *[tag("th", name) for name in ("step", "at", "what", "")])
    rows = [
        tag(
            "tr",
            tag("td", str(e.step)),
            tag("td", text(seconds(e.at_s))),
            tag("td", text(e.kind)),
            tag("td", text(event_text(e))),
        )
        for e in events
    ]
    return tag("table", tag("thead", head), tag("tbody", *rows))


def event_text(event: Event) -> str:
    """An event in words, with its numbers."""
    return with_numbers(event.text, event.numbers)


def with_numbers(said: str, numbers: Mapping[str, float]) -> str:
    """The text of an event, and its numbers by name, each in the unit that its name ends with."""
    told = [f"{_name(key)} {_value(key, value)}" for key, value in numbers.items()]
    return "; ".join([said, *told] if said else told)


def event_lines(events: Iterable[Event]) -> list[str]:
    """A line for every event that is not `QUIET`."""
    return [f"step {e.step}: {e.kind}: {event_text(e)}" for e in events if e.kind not in QUIET]


def _name(key: str) -> str:
    return key.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def _value(key: str, value: float) -> str:
    if key.endswith("_s") or key == "seconds":
        return seconds(value)
    if key.endswith("_bytes"):
        return size(value)
    return percent(value) if key.endswith("gain") else number(value)


def _x(step: float, steps: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / max(steps, 1)


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)
