"""Folders of killed processes go away, those of living ones stay."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from placewright.execute.scratch import Scratch, sweep

HOLD = "from placewright.execute.scratch import Scratch; s = Scratch(); print(s.name, flush=True); "


def test_a_folder_ends_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any temporary folder; others' folders in the same place are none of its business."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "placewright-run-mine").mkdir()
    with Scratch() as folder, Scratch() as another:
        (Path(folder) / "state").write_text("weights")
        sweep()
        assert Path(folder, "state").exists()
        assert folder != another
    assert [path.name for path in tmp_path.iterdir()] == ["placewright-run-mine"]


def test_what_a_killed_process_left_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it lives."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path)},
        text=True,
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    sweep()
    assert folder.exists()
    process.kill()
    process.communicate()
    assert folder.exists()
    sweep()
    assert not folder.exists()


def test_a_folder_that_is_being_made_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock has no name yet; nor is one swept that another process holds at this moment."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    young = tmp_path / "placewright-run-young"
    young.mkdir()
    (young / "lock.new").touch()
    held = tmp_path / "placewright-run-held"
    held.mkdir()
    with (held / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep()
        assert young.exists()
        assert held.exists()
    sweep()
    assert young.exists()
    assert not held.exists()


def test_cleaning_up_twice_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after somebody else has removed the folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch = Scratch()
    scratch.cleanup()
    scratch.cleanup()
    other = Scratch()
    shutil.rmtree(other.name)
    other.cleanup()
    assert list(tmp_path.iterdir()) == []
