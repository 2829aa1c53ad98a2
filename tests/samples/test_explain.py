"""Explanations of kept and sent samples, against hand-computed plans."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import UnknownNameError
from placewright.planning.wings import find_wing
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.views import explain
from tests.samples.tiny import tiny


def test_a_node_that_sends_and_one_that_is_full() -> None:
    """0.1 s a sample, 0.05 s to send one: 4 s by 30 files on one node and 8 on the other."""
    problem = tiny([38, 0, 2], storage=np.array([np.inf, 8.0, np.inf]))
    plan = SamplePlan(np.array([0]), np.array([1]), np.array([8]))
    first = explain(problem, plan, "n0")
    assert first.facts == {
        "samples": "38 before, 30 after",
        "sends": "8 to n1, 400 ms",
        "transfers end at": "400 ms",
        "trains for": "3 s",
        "ends at": "3.4 s",
        "limits": "no node ends later",
    }
    assert first.changes == {
        "1 more to n2": "3.35 s",
        "without 8 from n0 to n1": "3.8 s",
        "1 more to n1": "3.35 s, n1 stores 1 samples too many",
    }
    assert list(first.changes) == ["1 more to n2", "without 8 from n0 to n1", "1 more to n1"]
    second = explain(problem, plan, "n1")
    assert second.facts["receives"] == "8 from n0, 400 ms"
    assert second.facts["limits"] == "n0 ends last, 2.2 s later; its storage is full"
    assert "1 more to n2" in str(second)


def test_what_must_be_kept_and_a_wrong_name() -> None:
    """A node with nothing to give; classes are named; the verb finds it through the wing."""
    problem = tiny([[1, 1], [4, 0]], keep=np.array([[1, 1], [0, 0]]))
    move = SamplePlan(np.array([1]), np.array([0]), np.array([2]), np.array([0]))
    explanation = find_wing("samples").explain
    assert explanation is not None
    found = explanation(problem, nothing(), "n0")
    assert "it has only what it must keep" in found.as_json()["facts"]["limits"]
    assert "without 2 from n1 to n0 of class c0" in explain(problem, move, "n0").changes
    with pytest.raises(UnknownNameError, match="did you mean 'n0'"):
        explain(problem, nothing(), "n00")
