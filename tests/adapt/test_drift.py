"""Drift detection: lasting changes are detected, noise is not."""

from __future__ import annotations

import numpy as np

from placewright.adapt.drift import SETTLING, Drift, departed


def test_a_lasting_change_is_seen_within_a_window() -> None:
    """Steps that take half as long again, and steps that become faster."""
    for factor in (1.5, 0.7):
        drift = Drift()
        seen = [drift.note(t) for t in [1.0] * 20 + [factor] * 10]
        assert not any(seen[:20])
        assert seen.index(True) < 20 + drift.window


def test_one_slow_step_is_no_drift() -> None:
    """Two bursts of the ten-fold time change no median of five."""
    drift = Drift()
    steps = [1.0] * 12 + [10.0, 10.0] + [1.0] * 12
    assert not any(drift.note(t) for t in steps)


def test_five_per_cent_of_noise_is_no_drift() -> None:
    """In 500 steps under 5 % of noise hardly an alarm."""
    rng = np.random.default_rng(0)
    drift = Drift()
    assert sum(drift.note(float(t)) for t in 1 + 0.05 * rng.standard_normal(500)) <= 5


def test_a_restart_takes_a_new_reference() -> None:
    """After it the new time is normal."""
    drift = Drift()
    for t in [1.0] * 10 + [2.0] * 10:
        drift.note(t)
    drift.restart()
    assert not any(drift.note(2.0) for _ in range(SETTLING + 20))


def test_what_is_accepted_is_the_new_reference_at_once() -> None:
    """No settling: the next change is seen within a window."""
    drift = Drift()
    for t in [1.0] * 10 + [2.0] * 5:
        drift.note(t)
    drift.accept()
    seen = [drift.note(t) for t in [2.0] * 6 + [3.0] * 5]
    assert not any(seen[:6])
    assert any(seen[6:])


def test_what_was_not_measured_has_not_departed() -> None:
    """Off by more than a tenth, either way; any time is off where none was expected."""
    measured = np.array([1.05, 1.2, 0.8, np.nan, 0.0, 1.0])
    expected = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    assert departed(measured, expected, 0.1).tolist() == [False, True, True, False, False, True]
