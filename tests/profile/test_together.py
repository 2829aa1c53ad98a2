"""Devices that work side by side: what a plan's own steps say about its kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from placewright.execute.crew import StepLog
from placewright.execute.step_record import StepRecord
from placewright.operators.plan import OperatorPlan
from placewright.profile.together import paces
from placewright.testing.instances import tiny

PROBLEM = tiny(
    [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.01, 0.02, 0.03]], [(0, 0.0, [1]), (1, 0.0, [2])]
)


@dataclass
class Slowed:
    """Answers as a session would whose devices take so many times what is said."""

    times: tuple[float, ...]
    placement: list[int] = field(default_factory=list)
    steps: int = 0

    def load(self, placement: list[int], order: list[int]) -> None:
        """Take in the plan."""
        assert sorted(order) == [0, 1, 2]
        self.placement = placement

    def run(self, steps: int, *, watched: bool = False) -> list[StepRecord]:
        """As many records."""
        self.steps += steps
        logs = []
        for device, times in enumerate(self.times):
            mine = [op for op, d in enumerate(self.placement) if d == device]
            spans = [x for op in mine for x in (0.0, times * PROBLEM.compute_s[op, device])]
            log: dict[str, Any] = {"operators": tuple(mine), "spans_s": tuple(spans)}
            logs.append(StepLog(start_s=0.0, end_s=9.0, **log))
        return [StepRecord(0.0, 9.0, tuple(logs)) for _ in range(steps)]


def test_a_plan_of_several_says_what_company_costs() -> None:
    """Its own devices their own factor, one that it hardly uses the median, none below one."""
    found = paces(PROBLEM, Slowed((1.5, 0.8, 9.0)), OperatorPlan(np.array([0, 1, 2])))  # type: ignore[arg-type]
    assert found.factors.tolist() == pytest.approx([1.5, 1.0, 1.15])
    assert np.allclose(found.together.compute_s, PROBLEM.compute_s * found.factors)
    assert found.of(OperatorPlan(np.array([0, 0, 0]))) is PROBLEM
    assert found.of(OperatorPlan(np.array([0, 1, 0]))) is found.together
    assert str(found) == "dev0 1.50x, dev1 1.00x, dev2 1.15x"


def test_one_device_keeps_no_company() -> None:
    """Nothing is carried out, and nothing changes."""
    session = Slowed((2.0, 2.0, 2.0))
    found = paces(PROBLEM, session, OperatorPlan(np.array([1, 1, 1])))  # type: ignore[arg-type]
    assert (session.steps, found.together) == (0, PROBLEM)
