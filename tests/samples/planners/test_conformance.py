"""Every planner of samples passes the conformance kit."""

from __future__ import annotations

import pytest

from placewright.testing import PlannerConformance


class TestQuick(PlannerConformance):
    """Rules."""

    wing, named = "samples", ("none", "proportional", "nic", "greedy")


class TestPrograms(PlannerConformance):
    """The linear program, rounded; branch and cut."""

    wing, named = "samples", ("lp", "ilp")

    @pytest.fixture(autouse=True)
    def _needs_highs(self) -> None:
        pytest.importorskip("highspy")
