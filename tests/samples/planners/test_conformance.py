"""Every planner of samples passes the conformance kit."""

from __future__ import annotations

import pytest

from placewright.testing import PlannerConformance


class OfSamples(PlannerConformance):
    """Of wing 3."""

    wing = "samples"


class TestNone(OfSamples):
    """Nothing moves."""

    named = "none"


class TestProportional(OfSamples):
    """As many samples as a node is fast."""

    named = "proportional"


class TestNic(OfSamples):
    """Only access links."""

    named = "nic"


class TestGreedy(OfSamples):
    """From the last node to the one that it hurts least."""

    named = "greedy"


class TestLp(OfSamples):
    """The relaxation, rounded."""

    named = "lp"

    @pytest.fixture(autouse=True)
    def _needs_highs(self) -> None:
        pytest.importorskip("highspy")


class TestIlp(TestLp):
    """Branch and cut."""

    named = "ilp"
