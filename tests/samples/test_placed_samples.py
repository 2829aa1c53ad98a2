"""`place_samples` gives the results of ``samples run``."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright import place_samples
from placewright.errors import InputError
from placewright.samples.problem import Overlap
from placewright.samples.training.recipe import Recipe
from tests.samples.tiny import tiny


def test_a_plan_is_executed_beside_a_baseline(tmp_path: Path) -> None:
    """The plan's samples move; without it none do; a saved plan is judged alike."""
    pytest.importorskip("torch")
    problem, ended = tiny([24, 2]).replace(epochs=1), []
    with place_samples(problem, recipe=Recipe(epochs=1, batch=8), speed=20) as placed:
        result = placed.plan("lp")
        saved = result.save(tmp_path / "plan.json")
        assert placed.plan(plan=saved).value == result.value
        ours, still = placed.run(result.plan, baselines=["none"], ended=ended.append)
    assert placed.problem.overlap is Overlap.BARRIER
    assert (ours.moved_samples, still.moved_samples) == (int(result.plan.count.sum()), 0)
    assert ours.moved_samples > 0
    assert ended == [ours, still]


def test_epochs_come_one_by_one() -> None:
    """As many as the recipe says, with all samples in each."""
    pytest.importorskip("torch")
    recipe = Recipe(epochs=2, batch=8)
    with place_samples(tiny([20, 4]).replace(epochs=2), recipe=recipe, speed=50) as placed:
        steps = list(placed.adapt("lp"))
    assert [sum(step.held.values()) for step in steps] == [24, 24]


def test_a_testbed_is_not_hurried() -> None:
    """Before anything starts."""
    with pytest.raises(InputError, match="real time"):
        place_samples(tiny([3, 1]), engine="testbed", speed=2.0)
