"""Comparisons at equal budgets."""

from __future__ import annotations

import math

import pytest

from placewright.errors import InputError
from placewright.operators.judge import judge
from placewright.operators.learned_comparison import compare_learned, spread
from placewright.operators.planners import planners
from placewright.planning.contract import Context
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


def test_comparisons_need_evaluations_and_seeds() -> None:
    """None of either is refused."""
    with pytest.raises(InputError, match="evaluations"):
        compare_learned(layered(), ["post"], evaluations=0)
