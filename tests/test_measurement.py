"""Coverage of the interval of a speed-up, and detection of a busy machine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from placewright.measurement import T_95, MachineLoad, distance, speed_up


def test_the_quantiles_are_those_of_student() -> None:
    """To three digits behind the point."""
    for freedom, value in enumerate(T_95, 1):
        assert value == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)


def test_the_interval_covers_the_truth_in_95_of_100_cases() -> None:
    """With a machine that drifts by more than the difference, in 2000 simulated measurements."""
    rng, covered, truth = np.random.default_rng(0), 0, 1.1
    for _ in range(2000):
        drift = np.exp(rng.normal(0.0, 0.3, size=5))
        plan = [d * np.exp(rng.normal(0.0, 0.03, size=3)) for d in drift]
        other = [truth * d * np.exp(rng.normal(0.0, 0.03, size=3)) for d in drift]
        found = speed_up(plan, other)
        covered += found.low <= truth <= found.high
    assert 0.93 < covered / 2000 < 0.97


def test_one_round_has_no_interval() -> None:
    """And decides nothing."""
    found = speed_up([[1.0, 2.0, 3.0]], [[4.0]])
    assert found.ratio == 2.0
    assert math.isnan(found.low)
    assert not found.decided


def test_a_constant_ratio_is_decided() -> None:
    """Whatever the rounds have in common."""
    assert speed_up([[1.0], [2.0], [3.0]], [[1.1], [2.2], [3.3]]).decided
    assert not speed_up([[1.0], [2.0]], [[1.1], [1.8]]).decided


def test_a_machine_with_cores_to_spare_is_not_busy() -> None:
    """Others may have what the devices do not ask for."""
    assert not MachineLoad("h", cpus=8, cores=2, other_cpus=5.0, peak_cpus=5.5).disturbed
    assert MachineLoad("h", cpus=8, cores=2, other_cpus=6.0, peak_cpus=6.0).disturbed
    assert MachineLoad("h", cpus=2, cores=2, other_cpus=0.1, peak_cpus=1.0).disturbed
    assert not MachineLoad("h", cpus=2, cores=2, other_cpus=0.1, peak_cpus=0.4).disturbed


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
