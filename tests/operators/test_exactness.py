"""The tolerance of a check: 0 where eager's kernels are repeated, else their rounding."""

from __future__ import annotations

import math

import pytest

from placewright.capture.model import capture_source
from placewright.cluster.cluster import Device
from placewright.operators.exactness import EXACT, tolerance
from placewright.testing.small_zoo import small


def test_equal_cores_promise_every_bit() -> None:
    """Whatever else the devices differ in: speed, memory, node."""
    graph = capture_source(small("alexnet"), training=True)
    devices = [Device("a", cores=2), Device("b", cores=2, speed=0.5, node="other")]
    assert tolerance(graph, devices) is EXACT
    assert EXACT.absolute("parameter", 1e9, 3) == 0.0
    assert EXACT.steps is None


@pytest.mark.parametrize(
    ("other", "roundoff", "why"),
    [
        (Device("b", cores=4), 2.0**-24, "2 and 4 cores"),
        (Device("b", kind="gpu", cores=2), 2.0**-11, "TF32"),
    ],
)
def test_other_kernels_get_half_of_the_digits(other: Device, roundoff: float, why: str) -> None:
    """Relative to the largest value; Adam adds its rate in either direction; one step."""
    graph = capture_source(small("alexnet"), training=True, lr=1e-2)
    allowed = tolerance(graph, [Device("a", cores=2), other])
    assert allowed.relative == math.sqrt(roundoff)
    assert allowed.absolute("output", 3.0, 1) == pytest.approx(3.0 * math.sqrt(roundoff))
    assert allowed.absolute("parameter", 0.0, 1) == pytest.approx(2e-2)
    assert allowed.steps == 1
    assert why in allowed.reason
    assert tolerance(capture_source(small("alexnet")), [Device("a"), other]).steps is None
