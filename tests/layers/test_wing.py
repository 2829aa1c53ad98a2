"""The wing and its planners pass the conformance kit."""

from __future__ import annotations

from typing import Any

from placewright.layers.planners.swarm import Pso
from placewright.planning.contract import Planner
from placewright.testing import PlannerConformance, WingConformance


class TestWing(WingConformance):
    wing = "layers"


class _Planner(PlannerConformance):
    wing = "layers"


class TestData(_Planner):
    named = "data"


class TestPbqp(_Planner):
    named = "pbqp"


class TestPso(_Planner):
    def planner(self, problem: Any) -> Planner:
        """A short search."""
        return Pso(particles=3, iterations=1)

    def test_it_is_a_frozen_dataclass_with_a_name(self) -> None:
        """Its parameters are not the defaults: see `TestData`."""
