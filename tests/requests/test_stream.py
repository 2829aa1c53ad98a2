"""Arrival processes: mean rates, burstiness, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.numerics.arrays import FloatArray
from placewright.requests.stream import counted, gamma, mmpp, poisson, scaled, stepped_poisson


def variation(times: FloatArray) -> float:
    """Coefficient of variation of the gaps."""
    gaps = np.diff(times)
    return float(gaps.std() / gaps.mean())


def test_rates_and_burstiness() -> None:
    """About 100 a second; Poisson gaps vary by 1, gamma gaps as asked, bursts more than Poisson."""
    drawn = {
        "poisson": poisson(np.random.default_rng(0), 100, 300),
        "gamma": gamma(np.random.default_rng(0), 100, 300, 2.0),
        "mmpp": mmpp(np.random.default_rng(0), 100, 300),
    }
    for name, times in drawn.items():
        assert len(times) == pytest.approx(30_000, rel=0.1), name
        assert (np.diff(times) >= 0).all()
        assert times[-1] < 300
    assert variation(drawn["poisson"]) == pytest.approx(1.0, abs=0.05)
    assert variation(drawn["gamma"]) == pytest.approx(2.0, abs=0.1)
    assert variation(drawn["mmpp"]) > 1.1


def test_steps_and_counts() -> None:
    """Rates repeat from the start; counts are met in each step."""
    with pytest.raises(InputError, match="steps are too short for the duration"):
        stepped_poisson(np.random.default_rng(0), [100, 10], 1e-300, 40.0)
    times = stepped_poisson(np.random.default_rng(0), [100, 10], 10.0, 40.0)
    held = np.histogram(times, [0, 10, 20, 30, 40])[0]
    assert held == pytest.approx([1000, 100, 1000, 100], rel=0.25)
    times = counted(np.random.default_rng(0), [3, 0, 5], 2.0)
    assert np.histogram(times, [0, 2, 4, 6])[0].tolist() == [3, 0, 5]
    fast, duration_s = scaled(np.array([5.0, 6.0, 9.0]), 3.0)
    assert duration_s == 1.0
    assert fast == pytest.approx([0.0, 0.25, 1.0])


def test_wrong_numbers_are_refused() -> None:
    """By name."""
    rng = np.random.default_rng(0)
    for wrong in (
        lambda: poisson(rng, 0, 1),
        lambda: poisson(rng, np.nan, 1),
        lambda: poisson(rng, 1e12, 1e6),
        lambda: gamma(rng, 1, 1, 0),
        lambda: mmpp(rng, 1, 1, 0.5),
        lambda: mmpp(rng, 1e308, 1e308),
        lambda: mmpp(rng, 1e-12, 1e12),  # few requests, and a burst every ten seconds
        lambda: scaled(np.zeros(1), 1),
    ):
        with pytest.raises(InputError):
            wrong()


def test_too_many_counted_requests_are_refused() -> None:
    """Before anything of that size is drawn."""
    with pytest.raises(InputError, match="too many requests"):
        counted(np.random.default_rng(0), [10**9] * 5, 1.0)
