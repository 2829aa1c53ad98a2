"""Exit codes and output after Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from placewright.cli import sources
from placewright.io.scratch import Scratch
from placewright.operators import planners as planning
from tests.cli.run_cli import run_cli


class Interrupter:
    """A planner during which somebody presses Ctrl-C."""

    name = "interrupter"

    def unsupported_reason(self, problem: Any) -> str | None:
        """Always."""
        return None

    def __call__(self, problem: Any, context: Any) -> Any:
        """Never answers."""
        raise KeyboardInterrupt


def wing_that_tries(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let ``auto`` try these planners only."""
    known = planning.planners
    changed = {
        "planners": lambda problem: {**known(problem), "interrupter": Interrupter()},
        "portfolio": lambda problem: names,
    }
    for name, function in changed.items():
        monkeypatch.setattr(planning, name, function)


def test_the_best_plan_so_far_is_given(
    problem_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status INTERRUPTED, a note on stderr, exit code 0."""
    wing_that_tries(monkeypatch, "only:dev1", "interrupter", "only:dev0")
    output = run_cli(capsys, "operators", "plan", problem_file, "-f", "json")
    assert output.code == 0
    assert (output.data["status"], output.data["planner"]) == ("INTERRUPTED", "only:dev1")
    assert "best plan so far" in output.err


def test_without_any_plan_it_aborts(
    problem_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing on stdout; stderr says what was asked for and who had ended."""
    wing_that_tries(monkeypatch, "interrupter", "only:dev0")
    output = run_cli(capsys, "operators", "plan", problem_file)
    assert (output.code, output.out) == (130, "")
    assert output.err.startswith("interrupted: there is no plan of")
    assert "no planner had ended" in output.err


def test_before_planning_it_aborts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a cluster is read, for example."""

    def stop(spec: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "find_cluster", stop)
    output = run_cli(capsys, "devices")
    assert (output.code, output.err.strip()) == (130, "interrupted")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_ends_like_an_error(
    number: signal.Signals,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was opened is closed, the signal is named, and handlers are as they were before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    signal.signal(number, signal.SIG_DFL)  # Ray, once used, leaves a handler of its own

    def terminated(spec: str | None) -> None:
        with Scratch():
            os.kill(os.getpid(), number)
            time.sleep(10)

    monkeypatch.setattr(sources, "find_cluster", terminated)
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    output = run_cli(capsys, "devices")
    assert (output.code, output.out, output.err.strip()) == (code, "", f"terminated: {number.name}")
    assert list(tmp_path.iterdir()) == []
    after = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    assert after == before
