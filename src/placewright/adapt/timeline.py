"""Timeline of a run: step times, the plan in force, every event with its numbers; as a drawing."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from placewright.errors import InputError, check_known
from placewright.io.arguments import NumberOrUnknown, checked
from placewright.io.stored import write_file
from placewright.measurement import Check
from placewright.report.page import drawing, label, number, tag, text, ticks
from placewright.report.text import percent, seconds, size

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
            cx=_x(k + 1, len(times)),
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
    for step in (tick for tick in ticks(float(steps)) if tick == int(tick)):
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


FOLLOWED = logging.getLogger("placewright.run")
"""Steps and events of runs as they happen, for programs that follow one: a record has `fields`."""

FOLLOWED.propagate = False


class Kind(StrEnum):
    """Kinds of events, in the order in which they usually follow each other."""

    TRY = "try"
    DRIFT = "drift"
    STAY = "stay"
    MIGRATE = "migrate"
    KEEP = "keep"
    ROLL_BACK = "roll back"
    FAULT = "fault"
    RECOVER = "recover"
    JOIN = "join"
    SNAPSHOT = "snapshot"
    UNSAVED = "no snapshot"


@dataclass(frozen=True, slots=True)
class Event:
    """An event after a step.

    Attributes
    ----------
    step
        Steps done when it happened.
    at_s
        Seconds since the run began.
    numbers
        What was predicted, measured, moved; seconds and bytes.
    """

    step: int
    at_s: float
    kind: Kind
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@checked
@dataclass(slots=True)
class Timeline:
    """The history of one run.

    Attributes
    ----------
    step_s
        Wall seconds of every step that counted, in order; steps replayed after a fault are not
        in it.
    plan
        Number of the plan in force at each of these steps.
    scalars
        Outputs of one element after each of these steps: the loss.
    check
        The comparison with plain eager PyTorch, ``None`` if there was none.
    first_step
        Steps that were done before the run began: it continued another one.
    began_s
        When the run began, by ``time.perf_counter()``.
    """

    step_s: list[float] = field(default_factory=list)
    plan: list[int] = field(default_factory=list)
    scalars: list[Mapping[str, NumberOrUnknown]] = field(default_factory=list)
    check: Check | None = None
    events: list[Event] = field(default_factory=list)
    plans: int = 0
    first_step: int = 0
    began_s: float = field(default_factory=time.perf_counter)

    def note(self, step: int, kind: Kind, text: str, **numbers: float) -> None:
        """Add an event after `step`."""
        at_s = time.perf_counter() - self.began_s
        self.events.append(Event(step, at_s, kind, text, numbers))
        floats = {name: float(value) for name, value in numbers.items()}  # bytes are whole ones
        fields = {"event": str(kind), "step": step, "text": text, **floats}
        FOLLOWED.info("event", extra={"fields": fields})

    def stepped(self, seconds: float, scalars: Mapping[str, float] = MappingProxyType({})) -> None:
        """Add a step."""
        self.step_s.append(seconds)
        self.scalars.append(scalars)
        self.plan.append(self.plans)
        step = self.first_step + len(self.step_s)
        fields = {"step": step, "step_s": seconds, "plan": self.plans, **scalars}
        FOLLOWED.info("step", extra={"fields": fields})

    def count(self, kind: Kind | str) -> int:
        """Number of events of a kind."""
        return sum(event.kind == kind for event in self.events)

    def typical_s(self, last: int, plan: int | None = None) -> float:
        """Median of the last steps, or of those among them that were done under `plan`."""
        # Of the last steps first, and of the plan then: steps of a plan that was in force long ago
        # say nothing of now.
        recent = zip(self.step_s[-last:], self.plan[-last:], strict=True)
        steps = [seconds for seconds, number in recent if plan in (None, number)]
        return float(np.median(steps)) if steps else float("nan")

    def as_json(self) -> dict[str, Any]:
        """Plain data for files and reports."""
        return {
            "first_step": self.first_step,
            "step_s": self.step_s,
            "plan": self.plan,
            "check": None if self.check is None else self.check.as_json(),
            "events": [
                {"step": e.step, "at_s": e.at_s, "kind": str(e.kind), "text": e.text, **e.numbers}
                for e in self.events
            ],
        }

    @checked
    def save(self, path: Path) -> Path:
        """Write it as JSON."""
        return write_file(path, json.dumps(self.as_json(), indent=1))


@dataclass(frozen=True, slots=True)
class FollowedStep:
    """A step of a run: its wall time, its plan's number, and the loss where there is one."""

    step: int
    step_s: float
    plan: int
    loss: float | None


@dataclass(frozen=True, slots=True)
class FollowedEvent:
    """Something that happened after a step: drift, migration, fault, recovery."""

    step: int
    event: str
    text: str


@dataclass(frozen=True, slots=True)
class Followed:
    """What a run has done between two looks; false where that is nothing."""

    steps: list[FollowedStep]
    events: list[FollowedEvent]

    def __bool__(self) -> bool:
        return bool(self.steps or self.events)


def followed(lines: Sequence[Mapping[str, Any]]) -> Followed:
    """Steps and events among lines with the fields of `FOLLOWED`."""
    steps = [line for line in lines if "step_s" in line and "event" not in line]
    events = [line for line in lines if "event" in line]
    return Followed(list(map(_step, steps)), list(map(_happened, events)))


def _step(line: Mapping[str, Any]) -> FollowedStep:
    loss = line.get("loss")
    loss = loss if isinstance(loss, int | float) else None
    return FollowedStep(line["step"], line["step_s"], line["plan"], loss)


def _happened(line: Mapping[str, Any]) -> FollowedEvent:
    numbers = {key: value for key, value in line.items() if isinstance(value, float)}
    return FollowedEvent(line["step"], line["event"], with_numbers(line["text"], numbers))


def disturbances(
    who: str,
    when: str,
    names: Sequence[str],
    last: int,
    *,
    slow: Sequence[str],
    kill: Sequence[str],
) -> Iterator[tuple[str, int, float]]:
    """What --slow and --kill ask for: whom, when, and how many times slower; ``inf`` kills.

    Parameters
    ----------
    who, when
        Words for the parts of what is written: ``WORKER:STEP:TIMES``, and ``WORKER:STEP`` to kill.
    names, last
        Of all that there are; the last step, which count from 1.

    Raises
    ------
    InputError
        Something else is written, or a step that the run does not have.
    UnknownNameError
        Nobody has this name.
    """
    slower, killed = f"{who}:{when}:TIMES", f"{who}:{when}"
    every = [*(("--slow", x, slower) for x in slow), *(("--kill", x, killed) for x in kill)]
    for option, written, form in every:
        name, *numbers = written.rsplit(":", form.count(":"))
        try:
            at, times = float(numbers[0]), float((*numbers, "inf")[1])
        except (ValueError, IndexError):
            at, times = math.nan, math.nan
        if not (at >= 1 and at % 1 == 0 and times > 0) or (form == slower and times == math.inf):
            hint = f"{when.lower()}s count from 1; TIMES is a number above 0"
            raise InputError(f"{written!r} is not {form}", where=option, hint=hint)
        check_known(who.lower(), name, names, where=option)
        if at > last:
            what, hint = f"{written!r} is after the last {when.lower()}", "name an earlier one"
            raise InputError(what, where=option, by=f"the run has {last}", hint=hint)
        yield name, int(at), times
