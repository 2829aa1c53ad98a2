"""Printed tables of sample plans."""

from __future__ import annotations

import numpy as np

from placewright.planning.solving import solve
from placewright.samples.views import summary
from tests.samples.tiny import tiny


def test_the_table_says_how_much_faster() -> None:
    """Ten samples share two nodes."""
    assert "times as fast as not moving (1 s)" in summary(solve(tiny([10, 0]), "greedy"))


def test_where_nothing_takes_time_there_is_no_ratio() -> None:
    """Seconds per sample of 0 everywhere."""
    idle = tiny([3, 1], seconds_per_sample=np.zeros(2))
    assert "no time at all" in summary(solve(idle, "none"))
