"""The fit of latency and bandwidth in `benchmarks/link_speeds.py`."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.link_speeds import SIZES, fit_line, time_messages

from placewright.cluster.cluster import Link


def test_an_exact_line_is_found() -> None:
    """Latency and slope come back from times that lie on a line."""
    fit = fit_line(SIZES, 2e-4 + 8e-9 * np.array(SIZES))
    assert fit.latency_s == pytest.approx(2e-4)
    assert fit.seconds_per_byte == pytest.approx(8e-9)
    assert fit.worst_error < 1e-9


def test_a_shaped_link_is_never_faster_than_it_was_asked_to_be() -> None:
    """However busy the machine is: messages may take longer, none arrives early."""
    times = time_messages(Link("a", "b", 50e6, 5e-3), shaped=True, steps=3)
    assert (times > 0.95 * (5e-3 + np.array(SIZES) / 50e6)).all()
