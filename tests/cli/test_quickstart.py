"""The main job, start to finish, on models that take no time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from placewright.cli import quickstart
from placewright.planning.trace import Trace
from tests.cli.speak import speak


def test_quickstart_runs_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prediction, measurement, exactness, what is emulated, and three files a job."""
    jobs = (("tests.cli.models:tower", False), ("tests.cli.models:tower", True))
    monkeypatch.setattr(quickstart, "JOBS", jobs)
    said = speak(capsys, "quickstart", "--out", tmp_path, "--steps", "2")
    assert said.code == 0, said.err
    for words in ("predicted", "measured", "difference from eager PyTorch: 0", "emulated: board-b"):
        assert said.out.count(words) >= 2
    assert {path.name for path in tmp_path.iterdir()} == {
        f"tower{kind}{end}"
        for kind in ("", "-training")
        for end in (".html", "-trace.json.gz", "-plan.json")
    }


@pytest.mark.parametrize(
    ("end_s", "said"), [(1.2, "busy 20% longer side by side"), (1.0, "waiting for each other")]
)
def test_a_broken_promise_has_a_reason(end_s: float, said: str) -> None:
    """Devices that are busy longer than profiled, or else what lies between the operators."""
    trace = Trace(
        tracks=("a", "a -> b"),
        devices=1,
        labels=("op", "t"),
        track=np.array([0, 1]),
        label=np.array([0, 1]),
        start_s=np.zeros(2),
        end_s=np.array([end_s, 9.0]),
        title="measured",
    )
    outcome: Any = SimpleNamespace(
        measured=SimpleNamespace(trace=trace),
        result=SimpleNamespace(judgement=SimpleNamespace(busy_s=np.array([1.0]))),
    )
    assert said in quickstart._why(outcome)
