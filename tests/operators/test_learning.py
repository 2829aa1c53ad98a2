"""Training with activation checkpoints."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError, UnsupportedError
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.learning import (
    _run,
    compare_learned,
    spread,
    train,
    train_in_turns,
)
from placewright.operators.planners import planners
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.planning.contract import Context
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
    for name in ("heft", "transfer", "local-search", "random-search"):
        with pytest.raises(UnsupportedError, match="it has no parameters") as refused:
            train(layered(), name, file, evaluations=20)
        assert refused.value.hint == "choose one of post, hp3c, hsdag, doppler, rnn, placeto"
    with pytest.raises(UnsupportedError, match="nothing was learned"):
        train(layered(), "post", file, evaluations=1)
    with pytest.raises(InputError, match="cannot be read"):
        train(layered(), "post", file, resume=True)
    train(layered(), "post", file, evaluations=100)
    with pytest.raises(InputError, match="another"):
        solve(random_problem(5), {"name": "post", "checkpoint": str(file)})


def test_one_policy_is_trained_on_several_problems(tmp_path: Path) -> None:
    """Each goes on from the parameters of the one before, which a third problem takes."""
    file, choice = tmp_path / "all.safetensors", "doppler(hidden=4, imitation=4)"
    problems = [random_problem(seed) for seed in (1, 2)]
    found = train_in_turns(problems, choice, file, turns=2, evaluations=20)
    assert [each.problem for each in found] == [problem.name for problem in problems]
    totals = [each.total for each in found]
    assert totals[1] == max(totals) > 40
    used = f"doppler(hidden=4, samples=16, checkpoint='{file}')"
    assert solve(random_problem(3), used, bounds=False).judgement.feasible
    with pytest.raises(InputError, match="do not fit all") as refused:
        train_in_turns(problems, "post", file)
    assert "belong to one problem" in refused.value.by
    with pytest.raises(UnsupportedError, match="no parameters"):
        train_in_turns(problems, "heft", file)
    with pytest.raises(InputError, match="a problem and a turn"):
        train_in_turns([], choice, file)


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
        assert len(row.origins) == len(row.policy_s) == 2
        for value, alone, origin in zip(row.at_evaluations, row.policy_s, row.origins, strict=True):
            assert alone >= value
            assert alone == value or origin != "sample"
    assert rows["post"].updates
    assert rows["heft"].origins == ()
    data = found.as_json()
    assert {row["planner"] for row in data["planners"]} == set(rows)
    assert "120 evaluations" in str(found)


def test_what_comes_late_does_not_count_within_the_seconds() -> None:
    """A first plan that fits, found after the seconds allowed."""

    class Slow:
        checkpoint = ""

        def learn(self, evaluations: Evaluations) -> None:
            time.sleep(0.05)
            evaluations.costs(np.array([[0, 0, 1, 1]]))

    problem = tiny([[1.0, 1.0]] * 4, resident_bytes=[3.0, 1.0] * 2, memory_bytes=[4.0, 4.0])
    planner: Any = Slow()
    found = _run(problem, planner, evaluations=9, seconds=0.01, seed=0, bound=0.0)
    assert found.value == 2.0
    assert found.within == math.inf


def test_intervals_are_students() -> None:
    """Of 1, 2, 3: 4.303 / sqrt(3); none of one value."""
    assert spread([1.0, 2.0, 3.0]).half == pytest.approx(4.303 / math.sqrt(3))
    assert math.isnan(spread([1.0]).half)


def test_comparisons_need_evaluations_and_seeds() -> None:
    """None of either is refused."""
    with pytest.raises(InputError, match="evaluations"):
        compare_learned(layered(), ["post"], evaluations=0)


def test_planners_without_a_number_of_evaluations_leave_the_table() -> None:
    """They are not among the usual ones, and refused by name."""
    with pytest.raises(UnsupportedError, match="made equal"):
        compare_learned(layered(), ["heft"], evaluations=9)
