"""The progress line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from placewright.cli import console
from placewright.cli.console import ConsoleMeter
from placewright.cli.main import main
from placewright.planning.contract import STEPS


def test_no_progress_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """No terminal, no line."""
    with ConsoleMeter("planning", visible=False) as meter:
        meter(what="heft", value=1.0, bound=0.5, elapsed_s=0.1)
    assert capsys.readouterr() == ("", "")


def test_the_line_has_value_bound_gap_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is known so far, and nothing that is not."""
    monkeypatch.setattr(console, "VISIBLE_AFTER_S", 0.0)
    meter = ConsoleMeter("planning", visible=False)
    meter.step("profiling")
    assert meter._numbers() == ["profiling"]
    meter(what="heft", value=0.015, bound=0.01, elapsed_s=0.1)
    assert meter._numbers() == ["best 15 ms", "bound 10 ms", "gap 50.0 %", "heft"]
    assert meter._line().text.plain.endswith(" s  best 15 ms  bound 10 ms  gap 50.0 %  heft")


def test_a_running_plan_has_its_own_progress_text() -> None:
    """What is measured is no bound's gap."""
    meter = ConsoleMeter("running", visible=False, names=STEPS)
    meter(what="step 1", value=0.015, bound=0.01, elapsed_s=0.1)
    assert meter._numbers() == ["a step takes 15 ms", "predicted 10 ms", "step 1"]


def test_the_line_goes_away(capsys: pytest.CaptureFixture[str]) -> None:
    """Shown on stderr while it lasts, also when it ends with an error."""
    meter = ConsoleMeter("planning", visible=True)
    with pytest.raises(ZeroDivisionError), meter:
        _ = 1 / 0
    assert meter._live.is_started is False
    assert capsys.readouterr().out == ""


def test_progress_goes_to_the_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every call writes a line; the last does, and the exit code with the error's parts."""
    file = tmp_path / "progress.jsonl"
    monkeypatch.setenv(console.PROGRESS, str(file))
    console.progress_lines.cache_clear()
    try:
        with pytest.raises(SystemExit):
            main(["devices", "--on", "edge-dou"])
        with ConsoleMeter("planning", visible=False) as meter:
            for k in range(100):
                meter(what=f"look {k}", value=0.9, bound=1.0, elapsed_s=0.0)
    finally:
        console.progress_lines.cache_clear()
    assert console.PROGRESS not in os.environ
    first, ended, *others, last = map(json.loads, file.read_text().splitlines())
    assert (first["pid"], ended["exit_code"]) == (os.getpid(), 1)
    assert ended["error"]["next"] == "did you mean 'edge-duo'?"
    assert len(others) < 5
    assert (last["what"], last["value"], round(last["gap"], 3)) == ("look 99", 0.9, 0.111)


def test_the_end_of_the_progress_says_what_is_being_done(tmp_path: Path) -> None:
    """However many steps of a run were written since, whose lines say nothing of that."""
    file = tmp_path / "progress.jsonl"
    lines = console.ProgressLines(str(file))
    lines.write(title="training 1000 steps")
    for step in range(1000):
        lines.write(step=step, step_s=0.125)
    assert file.read_text()[-16_384:].count("training 1000 steps") in (1, 2)
    assert sum("step_s" in json.loads(line) for line in file.read_text().splitlines()) == 1000
