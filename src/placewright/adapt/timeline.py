"""Timeline of a run: step times, the plan in force, and every event with its numbers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from placewright.io.arguments import NumberOrUnknown, checked
from placewright.io.stored import write_file
from placewright.measurement.check import Check
from placewright.report.history import with_numbers

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
        fields = {"event": str(kind), "step": step, "text": text, **numbers}
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
