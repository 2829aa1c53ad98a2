"""Time limits of waits."""

from __future__ import annotations

import math

import pytest

from placewright.errors import InputError
from placewright.runtime import limits


@pytest.fixture(autouse=True)
def unscaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits without the factor that the suite itself may run with."""
    monkeypatch.delenv(limits.VARIABLE, raising=False)


def test_the_environment_makes_all_limits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its factor; anything but a positive number is refused."""
    assert limits.order_s(40e6) == limits.ORDER_S + 2.0
    for text, factor in (("4", 4.0), ("0.5", 0.5), ("", 1.0)):
        monkeypatch.setenv(limits.VARIABLE, text)
        assert limits.patience(3.0) == 3.0 * factor
    for text in ("0", "-1", "nan", "inf", "much"):
        monkeypatch.setenv(limits.VARIABLE, text)
        with pytest.raises(InputError, match=limits.VARIABLE):
            limits.patience(3.0)


def test_steps_are_waited_for_by_what_they_are_expected_to_take() -> None:
    """Many times as long, all of them; where nothing is expected there is a limit all the same."""
    assert limits.steps_s(3, 2.0) == limits.STEP_S + 6.0 * limits.SILENCE_STEPS
    assert limits.steps_s(1, 0.0) == limits.STEP_S
    assert limits.steps_s(2, math.nan) == limits.steps_s(2, math.inf) == 2 * limits.FIRST_STEPS_S


def test_time_in_which_nobody_could_look_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped for an hour has waited for no hour."""
    now = [100.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    countdown = limits.Countdown(10.0)
    now[0] += 0.5
    assert countdown.look() == 0.5
    now[0] += 3600.0
    assert countdown.look() == 4 * limits.LOOK_S
    assert countdown.left_s == 10.0 - 0.5 - 4 * limits.LOOK_S
    assert countdown.next_s == limits.LOOK_S
    assert not countdown.over
    for _ in range(20):
        now[0] += 0.5
        countdown.look()
    assert countdown.over
    assert countdown.next_s == 0.0
