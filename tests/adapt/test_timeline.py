"""Timelines of runs, and what a program that follows one reads of them."""

from __future__ import annotations

import logging
import re

import pytest

from placewright.adapt.timeline import (
    FOLLOWED,
    Event,
    FollowedEvent,
    FollowedStep,
    Kind,
    Timeline,
    event_text,
    followed,
    history,
)


def test_a_run_is_followed_by_its_lines() -> None:
    """Steps with their loss where it is a number, events with their numbers in words."""
    run = followed(
        [
            {"attempt": 1},
            {"step": 1, "step_s": 0.5, "plan": 1, "loss": 2.0, "accuracy": 0.5},
            {"event": "drift", "step": 1, "text": "b: forward passes", "before_s": 1.0},
            {"step": 2, "step_s": 0.25, "plan": 2, "loss": "nan"},
        ]
    )
    assert run.steps == [FollowedStep(1, 0.5, 1, 2.0), FollowedStep(2, 0.25, 2, None)]
    assert run.events == [FollowedEvent(1, "drift", "b: forward passes; before 1 s")]
    assert run
    assert not followed([{"title": "planning"}])


def test_an_event_has_the_same_numbers_for_who_follows(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes are whole numbers, as a step is, which is none of them."""
    timeline = Timeline()
    with caplog.at_level(logging.INFO, FOLLOWED.name):
        FOLLOWED.addHandler(caplog.handler)
        timeline.note(4, Kind.MIGRATE, "planned again", move_s=0.5, moved_bytes=12)
        FOLLOWED.removeHandler(caplog.handler)
    (line,) = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    (event,) = followed([line]).events
    assert (event.step, event.text) == (4, event_text(timeline.events[0]))


def run() -> Timeline:
    """Three steps, two plans, a migration and a snapshot."""
    timeline = Timeline(plans=1)
    timeline.stepped(1.0)
    timeline.stepped(2.0)
    numbers = {"predicted_gain": 0.25, "move_s": 0.5, "moved_bytes": 12.0}
    timeline.events.append(Event(2, 3.0, Kind.MIGRATE, "<b>a & b</b>", numbers))
    timeline.events.append(Event(2, 3.5, Kind.SNAPSHOT, "", {"seconds": 0.1}))
    timeline.plans = 2
    timeline.stepped(1.5)
    return timeline


def test_every_step_is_a_dot_in_the_colour_of_its_plan() -> None:
    """Two of the first plan, one of the second."""
    page = history(run())
    assert page.count("<circle") == 3
    assert page.count('class="span d0"') == 2
    assert page.count('class="span d1"') == 1


def test_dots_and_events_are_where_the_axis_names_their_step() -> None:
    """Each whole step once, also where a run is short; an event is after its step."""
    page = history(run())
    named = re.findall(r'<text x="([\d.]+)"[^>]*>step (\d+)</text>', page)
    assert [int(step) for _, step in named] == [0, 1, 2, 3]
    assert re.findall(r'<circle cx="([\d.]+)"', page) == [x for x, _ in named[1:]]
    (event,) = re.findall(r'<line x1="([\d.]+)"[^>]*class="capacity"', page)
    assert event == named[2][0]


def test_events_are_told_with_their_numbers() -> None:
    """Snapshots are no news; names are escaped."""
    page = history(run())
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in page
    assert "snapshot" not in page
    assert event_text(run().events[0]).endswith("predicted gain 25.0 %; move 500 ms; moved 12 B")


def test_a_run_without_steps_or_events_says_so() -> None:
    """Nothing to draw."""
    assert "No step" in history(Timeline())
    quiet = Timeline(plans=1)
    quiet.stepped(1.0)
    assert "Nothing happened" in history(quiet)
