"""Every planner passes the conformance kit."""

from __future__ import annotations

from placewright.requests import WING
from placewright.testing.conformance import PlannerConformance


class TestRolling(PlannerConformance):
    named, wing = "rolling", WING


class TestThesis(PlannerConformance):
    named, wing = "thesis", WING


class TestEdf(PlannerConformance):
    named, wing = "edf-fastest-batch", WING


class TestLeastCompletion(PlannerConformance):
    named, wing = "least-completion", WING


class TestSelected(PlannerConformance):
    named, wing = "selected", WING


class TestOpportunity(PlannerConformance):
    named, wing = "opportunity", WING
