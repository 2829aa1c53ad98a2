"""Line charts: points inside of the drawing, names in the legend."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.report.page import HEIGHT, WIDTH, Line, line_chart, ticks

VALUES = st.floats(-1e9, 1e9).map(lambda x: round(x, 3))


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6), st.booleans())
def test_points_and_ticks_are_inside(points: list[tuple[float, float]], both: bool) -> None:
    """Whatever the values are: equal, negative, far apart."""
    lines = [Line("one", points)] + ([Line("other", points[:1])] if both else [])
    drawn = line_chart(lines, "x", "y")
    circles = re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', drawn)
    assert len(circles) == len(points) + both
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in circles)
    assert re.findall(r'class="name">(\w+)<', drawn) == [line.name for line in lines]


def test_a_chart_from_zero_shows_its_aim() -> None:
    """Even above all points; without points there is a sentence."""
    drawn = line_chart([Line("loss", [(1.0, 0.5)])], "s", "loss", from_zero=True, aim=(0.9, "aim"))
    assert ">aim<" in drawn
    assert ">0<" in drawn
    assert line_chart([Line("loss", [])], "s", "loss") == "<p>Nothing to draw yet.</p>"


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_lie_in_their_range(low: float, width: float) -> None:
    """Round values, not many."""
    found = ticks(low + width, 6, low=low)
    assert 1 <= len(found) <= 14
    assert all(low - 1e-5 * width <= t <= low + width * 1.001 + 1e-3 for t in found)


@pytest.mark.parametrize("top", [5e-324, 1e-323, 2.3e-308, 0.0, -1.0, math.inf, math.nan, 1e308])
def test_ticks_of_numbers_at_the_ends_of_floats(top: float) -> None:
    """The lower end alone where nothing is round; never an error."""
    found = ticks(top, 8)
    assert found[0] == 0.0
    assert len(found) == 1 or found[-1] <= top
