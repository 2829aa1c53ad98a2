"""The wing keeps the house's contract; so does each planner."""

from __future__ import annotations

from placewright.testing.conformance import PlannerConformance, WingConformance


class TestWing(WingConformance):
    wing = "layers"


class _Planner(PlannerConformance):
    wing = "layers"


class TestData(_Planner):
    named = "data"


class TestPipeline(_Planner):
    named = "pipeline"
