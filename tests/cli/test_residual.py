"""``operators run --record`` and ``operators simulate --residual``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.operators.files import read_problem
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.residual import measured_run
from placewright.operators.residual_files import read_runs, write_runs
from tests.cli.run_cli import run_cli


@pytest.fixture
def runs_file(problem_file: Path, tmp_path: Path) -> Path:
    """Two models of the same plans, whose runs take twice as long as predicted."""
    problem = read_problem(problem_file)
    plans = [OperatorPlan(np.array(place)) for place in ([0, 0, 0, 0], [0, 0, 1, 0])]
    found = [judge(problem, plan) for plan in plans]
    runs = [measured_run(f, 2 * f.value, model) for f in found for model in ("one", "two")]
    return write_runs(runs, tmp_path / "runs.json")


def test_a_correction_stands_beside_the_judge(
    problem_file: Path, runs_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The value stays the judge's, the saved plan is the same; the corrected one is printed too."""
    plan, again = tmp_path / "plan.json", tmp_path / "again.json"
    command = ("operators", "simulate", problem_file, plan)
    quick = ("operators", "plan", problem_file, "--planner", "heft")
    planned = run_cli(capsys, *quick, "-o", plan, "-f", "json").data
    found = run_cli(capsys, *command, "--residual", runs_file, "-f", "json", "-o", again)
    assert found.code == 0
    assert found.data["value"] == planned["value"]
    assert found.data["corrected"]["value"] == pytest.approx(2 * planned["value"], rel=0.02)
    assert (found.data["corrected"]["runs"], found.data["corrected"]["models"]) == (4, 2)
    text = run_cli(capsys, *command, "--residual", runs_file).out
    assert "corrected by 4 measured runs of 2 models" in text
    assert text.startswith("predicted latency 16 s")
    assert "corrected" not in run_cli(capsys, *command, "-f", "json").data
    assert run_cli(capsys, "operators", "simulate", problem_file, again).code == 0


def test_wrong_files_are_named(
    problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A problem is no file of measured runs; nothing is run before a file is known to be one."""
    plan = tmp_path / "plan.json"
    run_cli(capsys, "operators", "plan", problem_file, "--planner", "heft", "-o", plan)
    output = run_cli(
        capsys, "operators", "simulate", problem_file, plan, "--residual", problem_file
    )
    assert output.code == 1
    assert "problem.json" in output.err
    assert "next:" in output.err
    model = ("operators", "run", "tests.cli.models:tower", "--on", "edge-duo")
    for options in (("--record", problem_file), ("--record", plan, "--adapt")):
        output = run_cli(capsys, *model, *options)
        assert (output.code, output.out) == (1, "")
        assert "next:" in output.err


@pytest.mark.slow
def test_runs_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the same model: two runs, with what the command printed."""
    file = tmp_path / "runs.json"
    command = ("operators", "run", "tests.cli.models:tower", "--on", "edge-duo", "--steps", 2)
    output = run_cli(capsys, *command, "--planner", "random", "--record", file, "-f", "json")
    assert output.code == 0
    (run,) = read_runs(file)
    assert (run.predicted_s, run.measured_s) == (
        output.data["predicted_s"],
        output.data["measured_s"],
    )
    assert run.devices == ("board-a", "board-b")
    assert f"added to {file}, which has 1 measured runs now" in output.err
