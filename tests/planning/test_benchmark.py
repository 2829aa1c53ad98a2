"""Planners over many problems: what is wrong with one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from placewright import write
from placewright.errors import InputError, UnknownNameError, UnsupportedError
from placewright.operators.conformance import tiny
from placewright.operators.plan import OperatorPlan
from placewright.planning.benchmark import bench
from placewright.planning.parameters import Auto
from tests.cli.run_cli import run_cli

TWO = tiny([[2.0, 5.0], [4.0, 3.0]], [(0, 1.0, [1])], name="two")


@dataclass(frozen=True, slots=True)
class Short:
    """A planner of a user's whose plan is too short."""

    name: str = "short"

    def unsupported_reason(self, problem: Any) -> str | None:
        """Never one."""
        return None

    def __call__(self, problem: Any, context: Any) -> OperatorPlan:
        """A device for the first operator."""
        return OperatorPlan([0])


def test_a_wrong_plan_ends_its_own_row() -> None:
    """As all that a planner raises; the note says what is wrong."""
    heft, short = bench([TWO], ["heft", Short()]).rows
    assert (heft.solved, short.value) == (True, math.inf)
    assert "placement has the wrong length" in short.note


def test_a_wrong_choice_ends_everything() -> None:
    """A planner or a parameter that does not exist, and what is no problem."""
    for choice in ("heftt", "search(efort=1)", "auto(tolerans=0)"):
        with pytest.raises(UnknownNameError, match="did you mean"):
            bench([TWO], ["heft", choice])
    with pytest.raises(InputError, match="there is no problem"):
        bench([])
    for wrong in ([3], ["x.json"], {"a": None}):
        with pytest.raises(UnsupportedError, match="no wing takes"):
            bench(wrong)


def test_files_of_one_name_are_two_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two folders, or of a folder and beside it: named by their paths, others by their names."""
    files = ["a/one.json", "a/same.json", "b/same.json", "same.json"]
    for seconds, file in enumerate(files, 1):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        write(tiny([[float(seconds)]]), tmp_path / file)
    sources = [tmp_path / name for name in ("a", "b", "same.json")]
    found = run_cli(capsys, "bench", *sources, "--planners", "heft", "-f", "json").data["rows"]
    names = ["one.json", *(str(tmp_path / file) for file in files[1:])]
    assert [(row["problem"], row["value"]) for row in found] == [
        *zip(names, range(1, 5), strict=True)
    ]


def test_a_plan_that_is_infinitely_worse_counts() -> None:
    """Where the best one takes no time; a bound of zero below every value says nothing."""
    free, other = tiny([[0.0, 5.0]], name="free"), tiny([[2.0, 1.0]], name="other")
    first, second = bench([free, other], ["only:dev1", "only:dev0"]).statistics
    assert (first.planner, second.planner) == ("only:dev0", "only:dev1")
    assert first.to_best == first.to_bound == pytest.approx(2**0.5)
    assert second.to_best == second.worst_to_best == second.to_bound == math.inf
    (alone,) = bench([free, other], ["only:dev1"]).statistics
    assert (alone.to_best, alone.to_bound) == (1.0, 1.0)


def test_every_planner_has_statistics_of_its_own() -> None:
    """Those of one name are told apart by their parameters; one that is there twice is refused."""
    low, high = ({"name": "search", "effort": effort} for effort in (1e3, 1e4))
    table = bench([TWO], [low, Auto(steps=1.0), "auto", high])
    assert {(s.planner, s.solved) for s in table.statistics} == {
        ("search(effort=1000.0)", 1),
        ("search(effort=10000.0)", 1),
        ("auto(steps=1.0)", 1),
        ("auto", 1),
    }
    for choice in ("heft", low, "auto"):
        with pytest.raises(InputError, match="is there twice"):
            bench([TWO], [choice, choice])
