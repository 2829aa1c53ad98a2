"""Timeouts of steps, and measurements that lose workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from placewright.adapt.run import MEASURED_AGAIN, StepTimeout, measured_despite_losses
from placewright.adapt.timeline import Timeline
from placewright.errors import WorkerError, WorkerLostError
from placewright.runtime import limits
from placewright.runtime.limits import SILENCE_STEPS

PREDICTED_S = 3.5


@pytest.fixture(autouse=True)
def unscaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits without the factor that the suite itself may run with."""
    monkeypatch.delenv(limits.VARIABLE, raising=False)


def predicted(slower: float = 1.0) -> Callable[[], float]:
    """Predicts a step on nodes that are so many times slower."""
    return lambda: PREDICTED_S * slower


def test_the_timeout_is_many_typical_steps() -> None:
    """Of the last twenty, of the prediction before there are any, and never less than was asked."""
    timeline, patience = Timeline(plans=1), StepTimeout(1e-9)
    limit_s = patience.step_limit_s(timeline, predicted())
    assert limit_s == pytest.approx(SILENCE_STEPS * PREDICTED_S)
    for seconds in [50.0] * 20 + [2.0] * 20:
        timeline.stepped(seconds)
    assert patience.step_limit_s(timeline, predicted()) == SILENCE_STEPS * 2.0
    assert StepTimeout(1000.0).step_limit_s(timeline, predicted()) == 1000.0


def test_survivors_may_be_a_hundred_times_slower() -> None:
    """The prediction counts until their plan has steps of its own, then those alone."""
    timeline, patience = Timeline(plans=1), StepTimeout(1e-9)
    patience.step_limit_s(timeline, predicted(0.01))
    for _ in range(30):
        timeline.stepped(0.001 * PREDICTED_S)
    timeline.plans = 2
    limit_s = patience.step_limit_s(timeline, predicted())
    assert limit_s == pytest.approx(SILENCE_STEPS * PREDICTED_S)
    timeline.stepped(3 * PREDICTED_S)
    limit_s = patience.step_limit_s(timeline, predicted())
    assert limit_s == pytest.approx(SILENCE_STEPS * 3 * PREDICTED_S)


def test_a_prediction_that_was_too_low_is_scaled() -> None:
    """Steps took seven times the prediction of the plan before."""
    timeline, patience = Timeline(plans=1), StepTimeout(1e-9)
    patience.step_limit_s(timeline, predicted(0.01))
    timeline.stepped(0.07 * PREDICTED_S)
    timeline.plans = 2
    limit_s = patience.step_limit_s(timeline, predicted())
    assert limit_s == pytest.approx(SILENCE_STEPS * 7 * PREDICTED_S)


def test_a_measurement_that_loses_a_worker_is_done_again() -> None:
    """Twice; an error that a worker has raised would come again, and is raised at once."""
    lost, notes = WorkerLostError("the worker process died", where="device 'a'", by="signal 9"), []
    outcomes: list[WorkerError | int] = [lost, lost, 7]

    def measure() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, WorkerError):
            raise outcome
        return outcome

    assert measured_despite_losses(measure, notes.append) == 7
    assert notes == ["device 'a': the worker process died, signal 9: another one is started"] * 2
    outcomes += [lost] * (MEASURED_AGAIN + 1)
    with pytest.raises(WorkerLostError):
        measured_despite_losses(measure, notes.append)
    outcomes[:] = [WorkerError("it raised"), 7]
    with pytest.raises(WorkerError, match="it raised"):
        measured_despite_losses(measure, notes.append)
