"""Timeouts of steps, measurements that lose workers, and Ctrl-C at precise moments of a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable

import pytest

from placewright.adapt.run import (
    MEASURED_AGAIN,
    StepTimeout,
    interrupts_wait,
    measured_despite_losses,
)
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


def press() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def waiting(doings: Iterable[Callable[[], object]]) -> None:
    """Do things one after the other, not to be interrupted."""
    with interrupts_wait():
        for do in doings:
            do()


def interrupted(*doings: Callable[[], object]) -> KeyboardInterrupt:
    """How that ends."""
    with pytest.raises(KeyboardInterrupt) as caught:
        waiting(doings)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return caught.value


def test_the_first_one_waits_for_the_end() -> None:
    """The block is carried out, then it is interrupted; afterwards all is as before."""
    done: list[int] = []
    interrupted(press, lambda: done.append(1))
    assert done == [1]
    with interrupts_wait():
        pass


def test_the_second_one_does_not_wait() -> None:
    """The block ends where it is."""
    done: list[int] = []
    interrupted(press, lambda: done.append(1), press, lambda: done.append(2))
    assert done == [1]


def test_an_error_does_not_hide_it() -> None:
    """Who presses Ctrl-C wants to end, whatever else happens; the error is its context."""
    assert isinstance(interrupted(press, lambda: int("one")).__context__, ValueError)


def test_who_handles_the_signal_goes_on_handling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once; and a thread, which may not, touches nothing."""
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with interrupts_wait():
            press()
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    thread = threading.Thread(target=lambda: interrupts_wait().__enter__())
    thread.start()
    thread.join()
    assert failed == []
