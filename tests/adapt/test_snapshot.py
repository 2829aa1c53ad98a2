"""Snapshots are whole or do not count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from placewright.adapt.snapshot import NOTE, SnapshotFolder
from placewright.errors import InputError


def write(folder: SnapshotFolder, step: int) -> Path:
    """A snapshot of one tensor in two files."""
    passing = folder.begin(step)
    save_file({"w": torch.full((3,), float(step))}, passing / "worker-0.safetensors")
    save_file({"v": torch.full((2,), -float(step))}, passing / "worker-1.safetensors")
    return folder.commit(passing, step=step, random_state=b"\x01\xff", placement={"op": "a"})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """State of all workers, random state, placement, step."""
    folder = SnapshotFolder(tmp_path, "net")
    write(folder, 7)
    found = folder.latest()
    assert found is not None
    assert (found.step, found.random_state) == (7, b"\x01\xff")
    assert found.placement == {"op": "a"}
    assert torch.equal(found.state["w"], torch.full((3,), 7.0))
    assert torch.equal(found.state["v"], torch.full((2,), -7.0))


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    """Two of four, and never a folder that was begun and not finished."""
    folder = SnapshotFolder(tmp_path, "net")
    for step in (1, 2, 3):
        write(folder, step)
    folder.begin(4)
    write(folder, 5)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-00000003", "step-00000005"]


def test_an_unfinished_one_does_not_count(tmp_path: Path) -> None:
    """A writer that died before the rename leaves the one before in force."""
    folder = SnapshotFolder(tmp_path, "net")
    write(folder, 1)
    save_file({"w": torch.zeros(3)}, folder.begin(2) / "worker-0.safetensors")
    found = SnapshotFolder(tmp_path, "net").latest()
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("damage", ["short", "flipped", "note", "gone", "path"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: str) -> None:
    """Truncated, altered, unreadable, missing or pointing elsewhere: the one before is taken."""
    folder = SnapshotFolder(tmp_path, "net")
    write(folder, 1)
    hurt = write(folder, 2)
    file = hurt / "worker-0.safetensors"
    data = file.read_bytes()
    if damage == "short":
        file.write_bytes(data[:-3])
    elif damage == "flipped":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "gone":
        file.unlink()
    elif damage == "note":
        (hurt / NOTE).write_text("{")
    else:
        note = json.loads((hurt / NOTE).read_text())
        note["files"] = {"../../secret.safetensors": "0"}
        (hurt / NOTE).write_text(json.dumps(note))
    found = folder.latest()
    assert found is not None
    assert found.step == 1
    assert folder.damaged == [hurt.name]


def test_where_all_are_damaged_nothing_begins_anew(tmp_path: Path) -> None:
    """Starting from nothing would in time replace what could still be mended."""
    folder = SnapshotFolder(tmp_path, "net")
    (write(folder, 3) / NOTE).write_text("{")
    with pytest.raises(InputError, match="no snapshot is undamaged"):
        folder.latest()


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    """What was begun is removed, the snapshot before it stays."""
    folder = SnapshotFolder(tmp_path, "net")
    write(folder, 1)
    with pytest.raises(OSError, match="No space left"):
        folder.begin(2, needed_bytes=1 << 62)
    folder.begin(3)
    folder.give_up()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_another_models_snapshot_is_refused(tmp_path: Path) -> None:
    """The error names both and says what to do."""
    write(SnapshotFolder(tmp_path, "net"), 1)
    with pytest.raises(InputError, match="'net' and the model is 'other'"):
        SnapshotFolder(tmp_path, "other").latest()
