"""Distances between arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.measurement.check import distance

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("made", "wanted", "expected"),
    [
        ([1.0, 2.5], [1.0, -2.0], (4.5, 2.0)),
        ([INF, 1.0], [INF, 1.5], (0.5, 1.5)),
        ([NAN, 1.0], [NAN, 1.0], (0.0, 1.0)),
        ([INF], [-INF], (INF, 0.0)),
        ([NAN], [INF], (INF, 0.0)),
        ([1.0], [NAN], (INF, 0.0)),
        ([], [], (0.0, 0.0)),
    ],
)
def test_infinite_elements_hide_no_difference(
    made: list[float], wanted: list[float], expected: tuple[float, float]
) -> None:
    """They must be equal, and the tolerance is a share of the largest finite magnitude."""
    assert distance(np.array(made), np.array(wanted)) == expected


def test_other_arrays_are_infinitely_far() -> None:
    """None, another shape, another type; complex numbers have a magnitude."""
    wanted = np.array([3 + 4j])
    assert distance(None, wanted) == (INF, 5.0)
    assert distance(wanted[None], wanted) == (INF, 5.0)
    assert distance(wanted.astype(np.complex64), wanted) == (INF, 5.0)
    assert distance(wanted + 1j, wanted) == (1.0, 5.0)
