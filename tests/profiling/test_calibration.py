"""Calibration of devices by whole steps on every worker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from placewright.operators.conformance import tiny
from placewright.operators.interference import InterferenceProfile
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.profiling.calibration import LEAST_STEPS, LONGEST_S, calibrated, interference
from placewright.runtime.session import Session
from placewright.runtime.step_record import StepLog, StepRecord
from tests.operators.adaptive.jobs import job


class Paced:
    """Steps that take a given time on each device; only durations are made up."""

    def __init__(self, step_s: dict[int, float]) -> None:
        self.step_s, self.device, self.loaded = step_s, -1, list[int]()

    def load(self, placement: list[int], order: list[int], *_: Any, **settings: Any) -> None:
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


PROBLEM = tiny(
    [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.01, 0.02, 0.03]], [(0, 0.0, [1]), (1, 0.0, [2])]
)


@dataclass
class Slowed:
    """A session whose devices take so many times the profiled seconds."""

    alone: float
    side_by_side: tuple[float, ...]
    placement: list[int] = field(default_factory=list)
    steps: int = 0

    def load(self, placement: list[int], order: list[int], *_: Any, **settings: Any) -> None:
        """Take in the plan."""
        assert sorted(order) == [0, 1, 2]
        self.placement = placement

    def run(self, steps: int, *, watched: bool = False) -> list[StepRecord]:
        """As many records."""
        self.steps += steps
        several = len(set(self.placement)) > 1
        logs = []
        for device, factor in enumerate(self.side_by_side):
            times = factor if several else self.alone
            mine = [op for op, d in enumerate(self.placement) if d == device]
            spans = [x for op in mine for x in (0.0, times * PROBLEM.compute_s[op, device])]
            log: dict[str, Any] = {"operators": tuple(mine), "spans_s": tuple(spans)}
            logs.append(StepLog(start_s=0.0, end_s=9.0, **log))
        return [StepRecord(0.0, 9.0, tuple(logs)) for _ in range(steps)]


def plan(*placement: int) -> OperatorPlan:
    """So placed."""
    return OperatorPlan(np.array(placement))


def measured(session: Slowed, several: OperatorPlan) -> InterferenceProfile:
    """With the first device as the single one."""
    return interference(PROBLEM, session, several, plan(0, 0, 0))  # type: ignore[arg-type]


def test_a_plan_of_several_devices_shows_the_interference() -> None:
    """Its own devices their own factor, one that it hardly uses the median, none below one."""
    found = measured(Slowed(1.0, (1.5, 0.8, 9.0)), plan(0, 1, 2))
    assert found.factors.tolist() == pytest.approx([1.5, 1.0, 1.15])
    assert np.allclose(found.together.compute_s, PROBLEM.compute_s * found.factors)
    assert found.of(plan(0, 0, 0)) is found.alone
    assert found.of(plan(0, 1, 0)) is found.together
    assert str(found) == "dev0 1.50x, dev1 1.00x, dev2 1.15x"


def test_where_no_device_has_the_model_the_plan_of_several_corrects_both() -> None:
    """Devices take 3 and 2 times what the profile says."""
    session: Any = Slowed(1.0, (3.0, 2.0, 9.0))
    found = interference(PROBLEM, session, plan(0, 1, 1), None)
    assert found.together is found.alone
    assert np.allclose(found.alone.compute_s, PROBLEM.compute_s * [3.0, 2.0, 2.5])


def test_a_burst_in_every_step_counts() -> None:
    """Each step has one, each time elsewhere: no operator's median shows it, the steps do."""
    session = Slowed(1.0, (1.0, 1.0, 1.0))
    once = session.run

    def run(steps: int, *, watched: bool = False) -> list[StepRecord]:
        records = []
        for k, record in enumerate(once(steps, watched=watched)):
            logs = []
            for log in record.logs:
                spans = np.array(log.spans_s).reshape(-1, 2)
                spans[[op == k % 3 for op in log.operators], 1] += 1.0
                logs.append(replace(log, spans_s=tuple(spans.ravel().tolist())))
            records.append(replace(record, logs=tuple(logs)))
        return records

    session.run = run  # type: ignore[method-assign]
    found = measured(session, plan(0, 1, 2))
    assert np.allclose(found.alone.compute_s[:, 0].sum(), 3.01)


def test_a_slower_machine_is_no_interference() -> None:
    """What slows one device alone as well is in both problems, and in no factor."""
    found = measured(Slowed(1.2, (1.2, 1.2, 1.2)), plan(0, 1, 2))
    assert found.factors.tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert np.allclose(found.alone.compute_s, 1.2 * PROBLEM.compute_s)


def test_a_busy_turn_is_no_interference() -> None:
    """The first turn takes twice as long."""
    session = Slowed(1.0, (1.5, 1.5, 1.5))
    once, seen = session.run, []

    def run(steps: int, *, watched: bool = False) -> list[StepRecord]:
        seen.append(session.placement)
        session.side_by_side = (3.0,) * 3 if len(seen) <= 2 else (1.5,) * 3
        return once(steps, watched=watched)

    session.run = run  # type: ignore[method-assign]
    assert measured(session, plan(0, 1, 2)).factors.tolist() == pytest.approx([1.5, 1.5, 1.5])
    assert seen == [[0, 1, 2]] * 2 + [[0, 0, 0]] * 4 + [[0, 1, 2]] * 2


def test_one_device_has_no_interference() -> None:
    """Nothing is carried out, and nothing changes."""
    session = Slowed(2.0, (2.0, 2.0, 2.0))
    assert measured(session, plan(1, 1, 1)).together is PROBLEM
    assert session.steps == 0


def test_slow_steps_are_not_waited_for() -> None:
    """Twelve steps of minutes would be no calibration."""
    session, slow = Slowed(1.0, (1.5, 1.5, 1.5)), PROBLEM.replace(compute_s=100 * PROBLEM.compute_s)
    found = interference(slow, session, plan(0, 1, 2), plan(0, 0, 0))  # type: ignore[arg-type]
    assert (session.steps, found.together) == (0, slow)
