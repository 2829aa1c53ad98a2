"""Problem files for the tests of the verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.operators.conformance import tiny
from placewright.operators.files import write_problem

DIAMOND = [(0, 1.0, [1, 2]), (1, 1.0, [3]), (2, 1.0, [3])]


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    """Four operators in a diamond on two devices."""
    problem = tiny([[4.0, 8.0]] * 4, DIAMOND, name="diamond")
    return write_problem(problem, tmp_path / "problem.json")


@pytest.fixture
def crowded_file(tmp_path: Path) -> Path:
    """Nothing fits."""
    problem = tiny([[1.0, 1.0]], resident_bytes=[9.0], memory_bytes=[5.0, 6.0])
    return write_problem(problem, tmp_path / "crowded.json")
