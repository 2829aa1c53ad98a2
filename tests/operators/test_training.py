"""Training with activation checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.errors import InputError, UnsupportedError
from placewright.operators.instances import random_problem
from placewright.operators.training import train
from placewright.planning.solving import solve
from tests.operators.planners.learned.test_post import layered


def test_training_is_resumed_and_used(tmp_path: Path) -> None:
    """Evaluations add up, and a plan that starts from the checkpoint is as good."""
    problem, file = layered(), tmp_path / "post.safetensors"
    choice = "post(start='uniform')"
    first = train(problem, choice, file, evaluations=600)
    second = train(problem, choice, file, evaluations=300, resume=True, seed=1)
    assert first.total == first.evaluations == 600
    assert second.total == 900
    used = {"name": "post", "start": "uniform", "checkpoint": str(file), "samples": 60}
    fresh = {"name": "post", "start": "uniform", "samples": 60}
    assert solve(problem, used).value < 0.9 * solve(problem, fresh).value


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    """A planner without parameters, a file of another problem, no file to resume."""
    file = tmp_path / "post.safetensors"
    with pytest.raises(UnsupportedError, match="no parameters"):
        train(layered(), "heft", file)
    with pytest.raises(UnsupportedError, match="nothing was learned"):
        train(layered(), "random-search", file, evaluations=20)
    with pytest.raises(InputError, match="cannot be read"):
        train(layered(), "post", file, resume=True)
    train(layered(), "post", file, evaluations=100)
    with pytest.raises(InputError, match="another"):
        solve(random_problem(5), {"name": "post", "checkpoint": str(file)})
