"""Copies of the whole model on every device that has the memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.conformance import tiny
from placewright.operators.planners.copied_stages import WholeCopies
from placewright.operators.problem import OperatorProblem
from placewright.operators.streaming.prediction import DEALT, whole_copies
from placewright.planning.contract import Context
from placewright.planning.solving import FixedPlan, solve


def problem(seed: int, devices: int = 4) -> OperatorProblem:
    """A chain of three operators on devices of random speeds."""
    speeds = np.random.default_rng(seed).uniform(1.0, 4.0, devices)
    made = tiny([(w * speeds).tolist() for w in (3.0, 1.0, 2.0)], [(0, 1.0, [1]), (1, 1.0, [2])])
    return made.replace(objective="throughput", pipeline=DEALT)


@pytest.mark.parametrize("seed", range(4))
def test_no_smaller_number_of_copies_is_better(seed: int) -> None:
    """Against every number of them; the value is one over the sum of the speeds."""
    instance = problem(seed)
    found = solve(instance, "whole-copies")
    others = [
        solve(instance, FixedPlan(plan, name="some")).value for plan in whole_copies(instance)
    ]
    assert found.value == pytest.approx(min(others))
    assert found.value == pytest.approx(1 / (1 / instance.compute_s.sum(axis=0)).sum())


def test_a_device_without_the_memory_gets_no_copy() -> None:
    """The plan fits; one device that is left has no copy, and without any there is no plan."""
    instance = problem(0).replace(resident_bytes=np.array([5.0, 5.0, 5.0]))
    for memory, copies in (([20, 20, 9, 20], 3), ([9, 9, 20, 9], 0)):
        plan = WholeCopies()(instance.replace(memory_bytes=np.array(memory, float)), Context())
        leader = plan.replica_of
        assert (0 if leader is None else int((leader == plan.placement[0]).sum())) == copies
    with pytest.raises(InfeasibleError, match="no device has the whole model"):
        WholeCopies()(instance.replace(memory_bytes=np.full(4, 9.0)), Context())


def test_other_pipelines_are_unsupported() -> None:
    """Anything else is refused with a reason."""
    instance = problem(0)
    assert WholeCopies().unsupported_reason(instance) is None
    alike = instance.replace(pipeline=replace(DEALT, by_speed=False))
    assert "--by-speed" in str(WholeCopies().unsupported_reason(alike))
    pinned = instance.replace(pinned=np.array([0, -1, -1]))
    assert "pinned" in str(WholeCopies().unsupported_reason(pinned))
    assert "contiguous" in str(WholeCopies().unsupported_reason(instance.replace(contiguous=True)))
