"""Timelines of runs, and what a program that follows one reads of them."""

from __future__ import annotations

from placewright.adapt.timeline import FollowedEvent, FollowedStep, followed


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
