"""The fit of latency and bandwidth in `benchmarks/link_speeds.py`."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.link_speeds import SIZES, fit_line, fit_link

from placewright.cluster.cluster import Link


def test_an_exact_line_is_found() -> None:
    """Latency and slope come back from times that lie on a line."""
    fit = fit_line(SIZES, 2e-4 + 8e-9 * np.array(SIZES))
    assert fit.latency_s == pytest.approx(2e-4)
    assert fit.seconds_per_byte == pytest.approx(8e-9)
    assert fit.worst_error < 1e-9


def test_a_shaped_link_is_measured_as_it_was_asked_for() -> None:
    """A slow emulated link cannot be faster than asked, and not twice as slow."""
    for _ in range(5):  # others may keep the machine from sending: then times lie on no line
        fit = fit_link(Link("a", "b", 50e6, 5e-3), shaped=True, steps=3)
        if fit.worst_error < 0.2:
            break
    assert 4e-3 < fit.latency_s < 10e-3
    assert 0.8 / 50e6 < fit.seconds_per_byte < 2 / 50e6
