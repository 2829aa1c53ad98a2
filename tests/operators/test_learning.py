"""Training with checkpoints, and comparisons at equal budgets."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from placewright.errors import InputError, UnsupportedError
from placewright.operators.instances import random_problem
from placewright.operators.judge import judge
from placewright.operators.learning import compare_learned, spread, train
from placewright.operators.planners import planners
from placewright.planning.contract import Context
from placewright.planning.solving import solve
from tests.operators.planners.learned.test_post import layered


def test_rows_hold_what_the_planners_reach() -> None:
    """Every seed, the best single device and HEFT; no row is below the bound."""
    problem = layered()
    names = ["post", "random-search", "local-search"]
    found = compare_learned(problem, names, evaluations=120, seconds=0.05, seeds=(3, 4))
    rows = {row.planner: row for row in found.rows}
    heft = judge(problem, planners(problem)["heft"](problem, Context())).value
    assert rows["heft"].at_evaluations == (heft,)
    singles = [rows[name] for name in rows if name.startswith("only:")]
    assert len(singles) == 1
    for name in names:
        row = rows[name]
        assert len(row.at_evaluations) == len(row.at_seconds) == 2
        assert row.evaluations == 120
        assert row.curve[-1].value_s == row.at_evaluations[0]
        assert min(row.at_evaluations) >= found.bound
        assert max(row.at_evaluations) <= singles[0].at_evaluations[0]
    data = found.as_json()
    assert {row["planner"] for row in data["planners"]} == set(rows)
    assert "120 evaluations" in str(found)


def test_intervals_are_students() -> None:
    """Of 1, 2, 3: 4.303 / sqrt(3); none of one value."""
    assert spread([1.0, 2.0, 3.0]).half == pytest.approx(4.303 / math.sqrt(3))
    assert math.isnan(spread([1.0]).half)


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


def test_comparisons_need_evaluations_and_seeds() -> None:
    """None of either is refused."""
    with pytest.raises(InputError, match="evaluations"):
        compare_learned(layered(), ["post"], evaluations=0)
