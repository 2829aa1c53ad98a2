"""Files of layer problems: what is read back, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placewright.errors import InputError
from placewright.layers.conformance import random_tiny, tiny
from placewright.layers.files import problem_json, read_piper, read_problem, write_problem
from tests.layers.test_readers import small


@pytest.mark.parametrize("seed", range(8))
def test_problems_are_read_back_equal(seed: int, tmp_path: Path) -> None:
    """With every option, infinite numbers included."""
    problem = random_tiny(seed)
    assert read_problem(write_problem(problem, tmp_path / "p.json")).hash() == problem.hash()


def test_variants_are_read_back_equal(tmp_path: Path) -> None:
    """Tables by layer, degree and variant."""
    (tmp_path / "piper.json").write_text(json.dumps(small()))
    problem = read_piper(tmp_path / "piper.json")
    assert read_problem(write_problem(problem, tmp_path / "p.json")).hash() == problem.hash()


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("forward_s", 0, 0, 0), [1.0], r"p\.json: forward_s: rows of a table"),
        (("link_index", 1), [0], r"p\.json: link_index: rows of a table"),
        (("links", 0, "message_s", 1), [0.0], r"p\.json: links\[0\]\.message_s: rows of a table"),
        (("links", 0, "pairs", 0), 8, r"p\.json: link: a link needs .* ascending numbers"),
        (("backward_s", 0, 0, 0, 0), "inf", r"backward_s must be finite"),
    ],
)
def test_wrong_files_are_refused(
    path: tuple[str | int, ...], value: object, match: str, tmp_path: Path
) -> None:
    """By file and field."""
    data: Any = problem_json(tiny([1.0, 1.0]))
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=match):
        read_problem(tmp_path / "p.json")
