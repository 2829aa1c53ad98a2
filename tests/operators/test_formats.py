"""Corrupted files of problems and plans: read, or an error that names file, field and fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright.errors import PlacewrightError
from placewright.operators.conformance import named_instances
from placewright.operators.files import read_plan, read_problem, write_problem
from placewright.operators.formats import plan_json, problem_json
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from tests.corruption import HOSTILE, value_paths, with_value

PROBLEM = named_instances()["diamond"].replace(
    pinned=[0, -1, -1, -1], contiguous=True, communication="star", calls=2
)
PLAN = OperatorPlan(np.array([0, 1, 1, 0]), call=np.array([0, 0, 1, 1]))
FILES: dict[str, Any] = {
    "problem": problem_json(PROBLEM),
    "plan": {"plan": plan_json(PROBLEM, PLAN, judge(PROBLEM, PLAN))},
}
WORSE = (*HOSTILE, "op1", "dev0", "1e999", [[-1]], {"op0": 10**30})


def reading_error(kind: str, data: Any, file: Path) -> PlacewrightError | None:
    """The error of reading it; ``None`` for a plan, or for a problem that is read back equal."""
    file.write_text(json.dumps(data))
    try:
        problem = PROBLEM if kind == "plan" else read_problem(file)
        if kind == "plan":
            read_plan(file, PROBLEM)
    except PlacewrightError as error:
        return error
    assert read_problem(write_problem(problem, file)).hash() == problem.hash()
    return None


@pytest.mark.parametrize("kind", FILES)
def test_the_files_are_valid_before_corruption(kind: str, tmp_path: Path) -> None:
    """Else nothing below would mean anything."""
    assert reading_error(kind, FILES[kind], tmp_path / "file.json") is None


@settings(
    derandomize=True,
    max_examples=500,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_corrupted_values_are_named(tmp_path: Path, data: st.DataObject) -> None:
    """One or two values replaced or missing: the place in front, and what to do."""
    kind = data.draw(st.sampled_from(tuple(FILES)))
    made = FILES[kind]
    for _ in range(data.draw(st.integers(1, 2))):
        if found := value_paths(made):  # else all of it is gone already
            path = data.draw(st.sampled_from(found))
            made = with_value(made, path, data.draw(st.sampled_from((..., *WORSE))))
    file = tmp_path / "file.json"
    error = reading_error(kind, made, file)
    if error is not None:
        assert error.what
        assert error.where.startswith((str(file), f"plan for {PROBLEM.name}"))
        assert "next: " in str(error)
