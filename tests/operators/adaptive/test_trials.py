"""Plan trials before a run: the plan that is measured fastest wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from placewright.adapt.trials import LEAST_ROUNDS, WARM_UP_STEPS, ShortTrials, TrialOutcome
from placewright.errors import WorkerError
from placewright.operators.adaptive.trials import CLOSE, closest, try_plans
from placewright.operators.conformance import tiny
from placewright.operators.interference import InterferenceProfile
from placewright.operators.plan import OperatorPlan
from placewright.runtime.step_record import StepRecord

PROBLEM = tiny([[1.0, 1.05, 1.1, 2.9], [1.0, 1.05, 1.1, 2.9]], [(0, 0.0, [1])])
KNOWN = InterferenceProfile.alike(PROBLEM)


@dataclass
class Acted:
    """Takes the seconds that are given for the first operator's device."""

    step_s: tuple[float, ...]
    at_step: Callable[[int], None] = lambda _: None
    noise: tuple[float, ...] = (1.0,)
    device: int = 0
    loads: list[int] = field(default_factory=list)
    steps: int = 0

    def load(self, placement: list[int], order: list[int], *, serial: bool = False) -> None:
        """Take in the plan."""
        assert sorted(order) == [0, 1]
        self.device = placement[0]
        self.loads.append(self.device)

    def run(self, steps: int) -> list[StepRecord]:
        """One record."""
        assert steps == 1
        self.steps += 1
        self.at_step(self.steps)
        factor = self.noise[(self.steps - 1) % len(self.noise)]
        return [StepRecord(0.0, factor * self.step_s[self.device], ())]


def plan(device: int) -> OperatorPlan:
    """Everything on one device."""
    return OperatorPlan(np.full(2, device))


def held(session: Acted, *devices: int) -> TrialOutcome[OperatorPlan]:
    """Trials of these single devices."""
    return try_plans(session, KNOWN, [plan(d) for d in devices])  # type: ignore[arg-type]


def test_only_close_plans_take_part_and_each_once() -> None:
    """The favourite stays the first one, even where it is far behind."""
    found = closest(KNOWN, [plan(1), plan(0), plan(1), plan(3), plan(2), plan(0)])
    assert [int(p.placement[0]) for p in found] == [1, 0, 2]
    assert [int(p.placement[0]) for p in closest(KNOWN, [plan(3), plan(0)])] == [3, 0]
    assert CLOSE < 1.9


def test_the_plan_measured_fastest_is_taken() -> None:
    """Against the prediction; turns come in rounds."""
    session = Acted((6.0, 5.9, 5.0, 1.0))
    found = held(session, 0, 1, 2)
    assert (found.best, found.plan.placement[0]) == (2, 2)
    assert found.step_s == pytest.approx((6.0, 5.9, 5.0))
    assert session.loads[:3] == [0, 1, 2]


def test_trials_of_equal_plans_end_after_some_rounds() -> None:
    """Steps before a run train nothing; of plans without a difference any is taken."""
    session = Acted((6.0, 6.0, 6.0, 1.0))
    found = held(session, 0, 1)
    assert found.step_s == pytest.approx((6.0, 6.0))
    assert session.steps >= LEAST_ROUNDS * ShortTrials.least_steps + WARM_UP_STEPS


def test_one_plan_is_not_tried() -> None:
    """Nor is one that is slow."""
    session = Acted((6.0, 6.0, 6.0, 1.0))
    assert held(session, 0, 0, 3).best == 0
    slow = PROBLEM.replace(compute_s=100 * PROBLEM.compute_s)
    found = try_plans(session, InterferenceProfile.alike(slow), [plan(1), plan(0)])  # type: ignore[arg-type]
    assert (found.best, session.steps) == (0, 0)
    assert found.step_s == (float("inf"),)


def test_a_small_lead_does_not_decide() -> None:
    """The prediction counts: another plan must be clearly ahead of the favourite."""
    assert held(Acted((6.0, 5.9, 6.0, 1.0)), 0, 1).best == 0
    assert held(Acted((6.0, 5.8, 6.0, 1.0)), 0, 1).best == 1


def test_a_machine_that_is_busy_for_a_turn_decides_nothing() -> None:
    """The favourite's first turn takes twice as long, the others are as they are."""
    busy = (2.0,) * (WARM_UP_STEPS + ShortTrials.least_steps) + (1.0,) * 100
    found = held(Acted((6.0, 6.6, 6.0, 1.0), noise=busy), 0, 1)
    assert found.best == 0
    assert found.step_s == pytest.approx((6.0, 6.6))


def test_what_was_measured_until_a_worker_died_counts() -> None:
    """Its plan is not taken."""
    for step, taken in {1: 1, 15: 1, 10: 0}.items():
        acted = Acted((6.0, 3.0, 6.0, 1.0), _raising(WorkerError("it died"), step))
        found = held(acted, 0, 1, 2)
        assert (step, found.best) == (step, taken)
        assert "it died" in found.ended


def test_ctrl_c_ends_more_than_the_trials() -> None:
    """It is raised, and says what was measured."""
    acted = Acted((6.0, 3.0, 6.0, 1.0), _raising(KeyboardInterrupt(), 15))
    with pytest.raises(KeyboardInterrupt, match=r"plans were tried.* s, .*not yet"):
        held(acted, 0, 1, 2)


def _raising(error: BaseException, step: int) -> Callable[[int], None]:
    """At that step."""

    def stop(now: int) -> None:
        if now == step:
            raise error

    return stop
