"""Calibration of devices by whole steps on every worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from placewright.operators.conformance import tiny
from placewright.operators.problem import OperatorProblem
from placewright.profiling.calibration import LEAST_STEPS, LONGEST_S, calibrated
from placewright.runtime.session import Session
from tests.operators.adaptive.jobs import job


class Paced:
    """Steps that take a given time on each device; only durations are made up."""

    def __init__(self, step_s: dict[int, float]) -> None:
        self.step_s, self.device, self.loaded = step_s, -1, list[int]()

    def load(self, placement: list[int], order: list[int]) -> None:
        """One device has everything."""
        (self.device,) = set(placement)
        self.loaded.append(self.device)

    def run(self, steps: int) -> list[Any]:
        """Records with their durations."""
        return [SimpleNamespace(duration_s=self.step_s[self.device])] * steps


def problem(**changes: Any) -> OperatorProblem:
    """Two operators, 0.3 s, 0.6 s and 9 s on three devices, 5 bytes between them."""
    compute = [[0.1, 0.2, 3.0], [0.2, 0.4, 6.0]]
    return tiny(compute, [(0, 5.0, [1])]).replace(**changes)


def test_factors_are_measured_over_profiled_seconds() -> None:
    """Devices at 1.1 and 1.5 times their profile; the third, too slow to ask, has the median."""
    workers = Paced({0: 0.33, 1: 0.9})
    found = calibrated(problem(), cast("Session", workers))
    assert problem().compute_s[:, 2].sum() > LONGEST_S
    assert workers.loaded == [0, 1, 1, 0]
    assert found.measured == found.problem.device_names[:2]
    assert np.allclose(found.factors, [1.1, 1.5, 1.3])
    assert np.allclose(found.problem.compute_s, problem().compute_s * found.factors)


def test_a_disturbed_turn_does_not_count() -> None:
    """Something else runs in the first turn of the first device: its second turn is believed."""
    workers = Paced({0: 0.6, 1: 0.6})
    run = workers.run

    def disturbed(steps: int) -> list[Any]:
        workers.step_s[0] = 0.6 if workers.loaded == [0] else 0.3
        return run(steps)

    workers.run = disturbed  # type: ignore[method-assign]
    assert np.allclose(calibrated(problem(), cast("Session", workers)).factors[:2], 1.0)


def test_devices_without_room_are_not_asked() -> None:
    """A device whose memory is too small by one byte never gets the whole step."""
    short = problem(memory_bytes=np.array([np.inf, 4.0, np.inf]))
    workers = Paced({0: 0.6})
    found = calibrated(short, cast("Session", workers))
    assert set(workers.loaded) == {0}
    assert np.allclose(found.factors, 2.0)


def test_nothing_changes_where_nobody_can_be_asked() -> None:
    """Nowhere is there room for the whole step."""
    short = problem(memory_bytes=np.full(3, 4.0))
    found = calibrated(short, cast("Session", Paced({})))
    assert found.measured == ()
    assert np.array_equal(found.problem.compute_s, short.compute_s)


def test_real_workers_are_calibrated() -> None:
    """Three real workers are asked one after another, and what they took is a positive factor."""
    _, work = job()
    with work.open(work.graph, work.cluster, work.state) as session:
        found = calibrated(work.problem, session, seconds=0.0)
        assert found.measured == work.problem.device_names
        assert (found.factors > 0).all()
        assert len(session.run(LEAST_STEPS)) == LEAST_STEPS
