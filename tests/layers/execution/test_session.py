"""Choice of the plan to execute: the plans that are tried, and the winner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from placewright.layers.execution import session
from placewright.layers.execution.layer_module import WorkerStepTimes
from placewright.layers.execution.session import LayerTrials, closest, executables, fastest
from placewright.layers.plan import LayerPlan
from placewright.layers.problem import LayerProblem
from placewright.layers.workers import Link
from placewright.planning.result import Result


def two_workers() -> LayerProblem:
    """Three layers, the second worker at half the speed."""
    ones = np.ones((3, 1))
    each = np.array([[[[1.0, 2.0, 1.0]]], [[[2.0, 4.0, 2.0]]]])
    return LayerProblem(
        *(("a", "b", "c"), ones, ones, each, each, ("u", "v"), (Link.linear(1e9, 1e-3),)),
        np.zeros((1, 1), dtype=np.int64),
        6,
        kind_names=("fast", "slow"),
        worker_kind=np.array([0, 1]),
    )


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """All plans of `auto` that can be executed."""
    return list(executables(two_workers(), "auto", lambda plan: None, time_limit_s=10))


def test_of_every_shape_the_best_is_tried(
    results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one first; nothing that is far behind, and nothing where steps are long."""
    assert len({r.plan for r in results}) == len(results) > 3
    assert [r.value for r in results] == sorted(r.value for r in results)
    monkeypatch.setattr("placewright.layers.execution.session.LONGEST_S", 1e9)
    tried = closest(iter(results))
    assert tried[0] is results[0]
    assert all(r.value <= (1 + session.CLOSE) * results[0].value for r in tried)
    assert len({session._shape(r.plan) for r in tried[:2]}) == 2
    monkeypatch.setattr("placewright.layers.execution.session.LONGEST_S", results[0].value / 2)
    assert closest(results) == [results[0]]


class FakeSession:
    """Steps of the last plan take a tenth of the others'."""

    def __init__(self, fast: LayerPlan) -> None:
        self.fast, self.loaded = fast, fast

    def load(self, plan: LayerPlan) -> None:
        """Take a plan."""
        self.loaded = plan

    def train(self, steps: int) -> list[tuple[WorkerStepTimes, ...]]:
        """Seconds of the plan in force."""
        step_s = 1.0 if self.loaded == self.fast else 10.0
        return [(WorkerStepTimes(step_s, 0.0, 0.0, 0.0),)] * steps


def test_the_fastest_in_trials_is_taken(
    results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was predicted; table and note have every measurement and the reason."""
    monkeypatch.setattr("placewright.layers.execution.session.LONGEST_S", 1e9)
    monkeypatch.setattr(LayerTrials, "budget_s", 0.0)
    tried = closest(results)
    session: Any = FakeSession(tried[-1].plan)
    taken, ended = fastest(session, iter(results))
    assert taken.plan is tried[-1].plan
    assert ended == ""
    assert f"{taken.planner} 1 s" in taken.note
    assert taken.note.endswith("is taken: the fastest")
    measured = {c.planner: c.measured_s for c in taken.candidates if c.measured_s < np.inf}
    assert measured == pytest.approx({r.planner: 1.0 if r is tried[-1] else 10.0 for r in tried})
    assert "10 s" in repr(taken)


def test_trials_that_say_nothing_leave_the_prediction() -> None:
    """Turns that scatter by more than candidates differ, and candidates that end workers."""
    trials = LayerTrials(2)
    for turn, seconds in enumerate((1.0, 0.6, 0.7, 1.1, 1.3, 0.8)):
        trials.current = turn % 2
        trials.times.add(turn % 2, [seconds] * 4)
    assert trials.step_s[1] < 0.9 * trials.step_s[0]
    assert trials.best == 0
    trials.fatal = 0
    assert trials.best == 1
    assert LayerTrials(2).best == 0


def test_notes_name_no_other_winner(results: list[Result]) -> None:
    """A plan that trials take over the one predicted to be the best is not said to be that one."""
    assert f"{results[0].planner} won" in results[0].note
    for other in results[1:]:
        assert " won" not in other.note
        assert other.note.startswith(f"{other.planner}: predicted ")
