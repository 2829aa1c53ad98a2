"""Device factors from noisy samples: value, error, turns, devices without samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.adapt.device_factors import (
    SETTLING,
    DeviceFactor,
    Drift,
    departed,
    device_factor,
    filled,
    usual_factor,
)


@pytest.mark.parametrize("samples", [15, 40])
def test_the_error_is_the_spread_of_the_factor(samples: int) -> None:
    """Over many draws of normal noise the mean error is the standard deviation of the value."""
    rng = np.random.default_rng(0)
    found = [device_factor([2.0 * rng.normal(1.5, 0.06, samples)], 2.0) for _ in range(400)]
    values = np.array([factor.value for factor in found])
    assert values.mean() == pytest.approx(1.5, rel=5e-3)
    spread = values.std() / 1.5
    assert np.mean([factor.error for factor in found]) == pytest.approx(spread, rel=0.2)


def test_bursts_change_little() -> None:
    """A fifth of the samples takes ten times as long: a mean would be 2.8 times too high."""
    rng = np.random.default_rng(1)
    samples = rng.normal(1.0, 0.02, 50)
    samples[::5] *= 10.0
    assert device_factor([samples]).value == pytest.approx(1.0, abs=0.02)


def test_the_fastest_turn_counts() -> None:
    """A machine that was busy for a whole turn; value and error are those of the other turn."""
    busy, free = [3.0, 3.1, 2.9], [1.2, 1.21, 1.19]
    found = device_factor([busy, free], 2.0)
    assert found == device_factor([free], 2.0)
    assert found.value == pytest.approx(0.6)
    assert found.error == pytest.approx(1.2533 * 1.4826 * 0.01 / 1.2 / math.sqrt(3), rel=1e-6)


def test_one_sample_has_no_error_estimate() -> None:
    """Nor has one of zero seconds a relative one."""
    assert device_factor([[3.0]], 2.0) == DeviceFactor(1.5, math.inf)
    assert device_factor([[0.0, 0.0]], 2.0) == DeviceFactor(0.0, math.inf)


def test_devices_without_samples_have_the_median_factor() -> None:
    """1 where no device has any."""
    known = {0: DeviceFactor(1.1), 2: DeviceFactor(1.5), 3: DeviceFactor(9.0)}
    assert filled(known, 5).tolist() == [1.1, 1.5, 1.5, 9.0, 1.5]
    assert filled({}, 2).tolist() == [1.0, 1.0]
    assert usual_factor([DeviceFactor(1.0), DeviceFactor(2.0)]) == 1.5


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
