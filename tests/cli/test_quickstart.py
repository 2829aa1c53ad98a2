"""The main job, start to finish, on models that take no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.cli import quickstart
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
