"""Statistics of noisy step times: medians, standard errors, expected gain of another round."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.adapt.trials import StepTimes, likely_gain


@given(st.floats(-0.3, 0.3), st.floats(0.01, 0.3), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_likely_gain_is_the_mean_of_what_is_drawn(
    behind: float, error: float, seed: int
) -> None:
    """The closed form agrees with two hundred thousand draws."""
    drawn = np.random.default_rng(seed).normal(-behind, error, 200_000)
    mean = np.maximum(0.0, drawn).mean()
    assert likely_gain(behind, error) == pytest.approx(mean, abs=0.02 * error)


@pytest.mark.parametrize(("busy", "least", "most"), [(0.0, 0.7, 1.4), (0.1, 0.8, 1.6)])
def test_the_error_is_the_one_that_differences_have(busy: float, least: float, most: float) -> None:
    """Over many runs: what is called the standard error is the spread of `behind` about the truth,
    also where whole turns are slow together.
    """
    rng = np.random.default_rng(1)
    found, errors = [], []
    for _ in range(400):
        times = StepTimes(2)
        for turn in range(8):
            slow = rng.normal(0.0, busy)
            noise = rng.normal(0.0, 0.1, 12)
            times.add(turn % 2, np.exp(slow + noise).tolist())
        found.append(times.behind(0, 1))
        errors.append(times.error(0, 1))
    assert least < np.mean(errors) / np.std(found) < most


def test_a_plan_without_turns_is_behind_all() -> None:
    """No steps, no time; forgetting the only turn is the same."""
    times = StepTimes(2)
    assert times.median_s(1) == math.inf
    times.add(1, [2.0, 2.2, 2.1])
    assert times.median_s(1) == pytest.approx(2.1)
    assert all(map(math.isnan, times.shift(1)))
    times.forget_last(1)
    assert times.median_s(1) == math.inf


def test_plans_are_compared_over_the_turns_that_both_had() -> None:
    """A machine that has become twice as slow does not make the plan that dropped out faster."""
    times = StepTimes(2)
    for plan, seconds in ((0, 1.0), (1, 1.1), (0, 2.0), (0, 2.0), (0, 2.0)):
        times.add(plan, [seconds] * 4)
    assert times.behind(1, 0) == pytest.approx(math.log(1.1))
    change, error = times.shift(0)
    assert change == pytest.approx(0.0)
    assert error > 0
