"""`bench`: ratios, wins and failures of planners over problems."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import placewright
from placewright.errors import InputError, UnknownNameError
from tests.cli.run_cli import run_cli

PROBLEMS = [placewright.generate_tasks("layered", 20, devices=2, seed=seed) for seed in range(3)]


def test_ratios_are_to_the_best_of_each_problem() -> None:
    """Recomputed from the values; a planner that cannot take a problem has a reason."""
    table = placewright.bench(PROBLEMS, ["heft", "only:p0", "dp"])
    for problem in PROBLEMS:
        rows = {row.planner: row for row in table.rows if row.problem == problem.name}
        best = min(row.value for row in rows.values())
        bound = max(placewright.bounds(problem).values())
        for row in (rows["heft"], rows["only:p0"]):
            assert row.to_best == pytest.approx(row.value / best)
            assert row.to_bound == pytest.approx(row.value / bound)
        assert not rows["dp"].solved
        assert rows["dp"].note
    heft = table.statistics[0]
    assert (heft.planner, heft.solved, heft.wins) == ("heft", 3, 3)
    assert table.statistics[-1].planner == "dp"
    assert math.isinf(table.statistics[-1].to_best)
    assert "3 of 3" in repr(table)
    assert json.loads(json.dumps(table.as_json()))["statistics"][-1]["to_best"] is None


def test_wrong_names_are_refused() -> None:
    """A planner that does not exist, no problem, two of a name."""
    with pytest.raises(UnknownNameError):
        placewright.bench(PROBLEMS, ["heff"])
    with pytest.raises(InputError, match="no problem"):
        placewright.bench([], ["heft"])
    with pytest.raises(InputError, match="same name"):
        placewright.bench([PROBLEMS[0], PROBLEMS[0]], ["heft"])


def test_the_verb_reads_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planners are separated by commas, parameters too."""
    for problem in PROBLEMS:
        placewright.write(problem, tmp_path / f"{problem.name}.json")
    planners = "heft(rank='through',device='path'),auto(tolerance=0)"
    output = run_cli(capsys, "bench", str(tmp_path), "--planners", planners, "-f", "json")
    assert output.code == 0, output.err
    assert len(json.loads(output.out)["rows"]) == 6
