"""The schedule of snapshots, with scripted failures of the disk and of workers."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.adapt.snapshot import SnapshotSchedule
from placewright.adapt.timeline import Kind, Timeline
from placewright.errors import WorkerError

FULL = OSError(errno.ENOSPC, "No space left on device")
LOST = WorkerError("the worker process died")
RUNNING: Any = None


class Kept:
    """A past that is written down, or fails to be in the ways given, one after the other."""

    def __init__(self, *fails: Exception) -> None:
        self.counted = self.saved = 0
        self.fails = list(fails)
        self.snapshots = SimpleNamespace(path=Path("here"))

    def save(self, running: Any, step: int) -> None:
        """Write it down."""
        if self.fails:
            raise self.fails.pop(0)
        self.saved = step


def saving(past: Any, steps: int) -> SnapshotSchedule:
    """Every third step, after so many."""
    made = SnapshotSchedule(past, Timeline(), 3)
    for past.counted in range(1, steps + 1):
        made.stepped()
    return made


def recorded_events(made: SnapshotSchedule) -> list[tuple[int, Kind]]:
    """What the run's history says of it."""
    return [(event.step, event.kind) for event in made.timeline.events]


def test_every_third_step_is_written_once() -> None:
    """Neither before nor again, though it may be asked for."""
    past = Kept()
    saving(past, 2).catch_up(RUNNING)
    assert past.saved == 0
    made = saving(past, 3)
    for _ in range(3):
        made.catch_up(RUNNING)
    assert made.save(RUNNING)
    assert recorded_events(made) == [(3, Kind.SNAPSHOT)]


def test_a_disk_that_does_not_take_it_is_told() -> None:
    """It is not tried again before the next one is due; the last one can be asked for."""
    made = saving(Kept(FULL, FULL), 3)
    made.catch_up(RUNNING)
    made.catch_up(RUNNING)
    assert recorded_events(made) == [(3, Kind.UNSAVED)]
    assert made.timeline.events[0].text == "here: No space left on device"
    assert not made.save(RUNNING)
    assert made.save(RUNNING)


@pytest.mark.parametrize("losses", [1, 2])
def test_where_workers_are_lost_it_is_tried_twice(losses: int) -> None:
    """Once more when others are there; then it is left out and reported."""
    made = saving(Kept(*[LOST] * losses), 3)
    for _ in range(losses):
        with pytest.raises(WorkerError):
            made.catch_up(RUNNING)
    made.catch_up(RUNNING)
    assert recorded_events(made) == [(3, Kind.SNAPSHOT if losses == 1 else Kind.UNSAVED)]
