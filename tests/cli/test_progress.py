"""The progress line."""

from __future__ import annotations

import pytest

from placewright.cli import console
from placewright.cli.console import ConsoleMeter
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
