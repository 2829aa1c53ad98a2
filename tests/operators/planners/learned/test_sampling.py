"""PyTorch's settings while a planner learns."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from placewright.operators.conformance import tiny
from placewright.operators.planners.learned import sampling
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.planning.contract import Context


def test_importing_torch_is_not_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds until torch is there are added to the deadline; a second session adds none."""
    clock = iter((10.0, 12.5, 20.0, 20.0))
    monkeypatch.setattr(sampling, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    deadline_s = time.perf_counter() + 60.0
    evaluations = Evaluations(tiny([[1.0, 1.0]] * 3), Context(deadline_s=deadline_s))
    with sampling.torch_session("post", evaluations):
        assert evaluations.context.deadline_s == deadline_s + 2.5
    with sampling.torch_session("post", evaluations):
        assert evaluations.context.deadline_s == deadline_s + 2.5
