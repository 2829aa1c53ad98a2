"""Snapshots on disk: complete ones are read back, all others are ignored."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from placewright.adapt.snapshot import NOTE, FolderLock, ReplayLog, SnapshotFolder
from placewright.errors import InputError, RunError
from placewright.graph.graph import TensorSpec
from tests.other_user import UID, needs_root

CHANGING = {"w": TensorSpec((3,), "float32", (1,)), "v": TensorSpec((2,), "float32", (1,))}


def net_in(folder: Path) -> SnapshotFolder:
    """The snapshots of a run of ``net``."""
    return SnapshotFolder(folder, "net", CHANGING)


def write(folder: SnapshotFolder, step: int) -> Path:
    """A snapshot of one tensor in two files."""
    passing = folder.begin(step)
    save_file({"w": torch.full((3,), float(step))}, passing / "worker-0.safetensors")
    save_file({"v": torch.full((2,), -float(step))}, passing / "worker-1.safetensors")
    return folder.commit(passing, step=step, random_state=b"\x01\xff", placement={"op": "a"})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """State of all workers, random state, placement, step."""
    folder = net_in(tmp_path)
    write(folder, 7)
    found = folder.latest()
    assert found is not None
    assert (found.step, found.random_state) == (7, b"\x01\xff")
    assert found.placement == {"op": "a"}
    assert torch.equal(found.state["w"], torch.full((3,), 7.0))
    assert torch.equal(found.state["v"], torch.full((2,), -7.0))


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    """Two of four, and never a folder that was begun and not finished."""
    folder = net_in(tmp_path)
    for step in (1, 2, 3):
        write(folder, step)
    folder.begin(4)
    write(folder, 5)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-00000003", "step-00000005"]


def test_an_unfinished_one_does_not_count(tmp_path: Path) -> None:
    """A writer that died before the rename leaves the one before in force."""
    folder = net_in(tmp_path)
    write(folder, 1)
    save_file({"w": torch.zeros(3)}, folder.begin(2) / "worker-0.safetensors")
    found = net_in(tmp_path).latest()
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("damage", ["short", "flipped", "note", "gone", "path", "infinite"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: str) -> None:
    """Truncated, altered, unreadable, missing or pointing elsewhere: the one before is taken."""
    folder = net_in(tmp_path)
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
        other = {"files": {"../../secret.safetensors": "0"}}
        note |= other if damage == "path" else {"step": float("inf")}
        (hurt / NOTE).write_text(json.dumps(note))
    found = folder.latest()
    assert found is not None
    assert found.step == 1
    assert folder.damaged == [hurt.name]


def test_a_damaged_one_is_none_of_those_that_are_kept(tmp_path: Path) -> None:
    """Once the run goes on from the one before, it would be the last one for long."""
    folder = net_in(tmp_path)
    write(folder, 1)
    (write(folder, 9) / NOTE).write_text("{")
    assert folder.latest() is not None
    for step in (3, 4):
        write(folder, step)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-00000003", "step-00000004"]


def test_all_snapshots_damaged_is_an_error(tmp_path: Path) -> None:
    """Starting from nothing would in time replace what could still be mended."""
    folder = net_in(tmp_path)
    (write(folder, 3) / NOTE).write_text("{")
    with pytest.raises(InputError, match="no snapshot is undamaged"):
        folder.latest()


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    """What was begun is removed, the snapshot before it stays."""
    folder = net_in(tmp_path)
    write(folder, 1)
    with pytest.raises(OSError, match="No space left"):
        folder.begin(2, needed_bytes=1 << 62)
    folder.begin(3)
    folder.give_up()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_path_that_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    """Too long, or within a file."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "x" / ("y" * 300), tmp_path / "file" / "x"):
        for of_path in (FolderLock, lambda folder: SnapshotFolder(folder, "net", {})):
            with pytest.raises(InputError, match="no folder can be made") as raised:
                of_path(path)
            assert str(tmp_path) in raised.value.where


@needs_root
def test_a_folder_of_another_user_that_all_may_write_to_is_refused(tmp_path: Path) -> None:
    """Anybody could change what a run goes on from, or choose where it is written."""
    his, link = tmp_path / "his", tmp_path / "link"
    his.mkdir()
    os.chown(his, UID, UID)
    net_in(his)  # who names it trusts him
    his.chmod(0o777)
    with pytest.raises(InputError, match="all users may write to it"):
        net_in(his)
    link.symlink_to(tmp_path / "elsewhere")
    os.lchown(link, UID, UID)
    tmp_path.chmod(0o1777)
    with pytest.raises(InputError, match="another user has put a link or a pipe there"):
        net_in(link)
    assert not (tmp_path / "elsewhere").exists()


def test_another_models_snapshot_is_refused(tmp_path: Path) -> None:
    """The error names both and says what to do."""
    write(net_in(tmp_path), 1)
    with pytest.raises(InputError, match="'net' and the model is 'other'"):
        SnapshotFolder(tmp_path, "other", CHANGING).latest()


def test_a_model_of_the_same_name_with_other_tensors_is_refused(tmp_path: Path) -> None:
    """Every `torch.nn.Sequential` has the same name."""
    write(net_in(tmp_path), 1)
    wider = CHANGING | {"w": TensorSpec((4,), "float32", (1,))}
    with pytest.raises(InputError, match="another model") as caught:
        SnapshotFolder(tmp_path, "net", wider).latest()
    assert caught.value.by == "'w': (3,) float32 in the snapshot, (4,) float32 in the model"


def test_foreign_files_in_the_folder_are_kept(tmp_path: Path) -> None:
    """A copy that somebody has kept is neither read, nor counted, nor removed."""
    kept = ["notes.txt", "step-00000001-backup", "step-by-step", "unfinished-novel"]
    for name in kept:
        (tmp_path / name).mkdir()
    folder = net_in(tmp_path)
    for step in (1, 2, 3):
        write(folder, step)
    assert folder.oldest() == 2
    found = folder.latest()
    assert found is not None
    assert found.step == 3
    ours = ["step-00000002", "step-00000003"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*kept, *ours])


def test_the_newest_is_the_one_of_the_last_step(tmp_path: Path) -> None:
    """Numbers, not letters."""
    folder = net_in(tmp_path)
    write(folder, 99_999_999)
    write(folder, 100_000_000)
    assert [p.name for p in folder.whole()] == ["step-99999999", "step-100000000"]


@pytest.mark.parametrize("missing", ["graph", "files", "placement"])
def test_a_note_that_lacks_something_does_not_count(missing: str, tmp_path: Path) -> None:
    """The snapshot before it is read."""
    folder = net_in(tmp_path)
    write(folder, 1)
    note = write(folder, 2) / NOTE
    note.write_text(
        json.dumps({k: v for k, v in json.loads(note.read_text()).items() if k != missing})
    )
    found = net_in(tmp_path).latest()
    assert found is not None
    assert found.step == 1


class Workers:
    """A session whose state is a number."""

    value, full = 0.0, False

    def save_state(self, folder: Path) -> None:
        """One file, or half of one on a full disk."""
        save_file({"w": torch.tensor([self.value])}, folder / "a.safetensors")
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def random_state(self) -> bytes:
        """As drawn so far."""
        return b"seed"

    def placement(self) -> dict[str, str]:
        """As planned."""
        return {"f": "b", "g": "a"}


JOB: Any = SimpleNamespace(
    state_bytes=4,
    changing={"w": TensorSpec((1,), "float32", (1,))},
    name="net",
)


def after(steps: int, folder: Path, every: int = 3) -> tuple[ReplayLog, Any]:
    """A past of so many steps with a snapshot after each third."""
    past, workers = ReplayLog.of(folder, JOB), Workers()
    for step in range(1, steps + 1):
        past.take(step, {"x": torch.tensor([float(step)])})
        past.counted, workers.value = step, float(step)
        if step % every == 0:
            past.save(workers, step)
    return past, workers


def test_from_every_snapshot_that_is_left_the_run_can_be_repeated(tmp_path: Path) -> None:
    """The last two of them; batches from before the older one are forgotten."""
    past, _ = after(11, tmp_path)
    assert [p.name for p in past.snapshots.whole()] == ["step-00000006", "step-00000009"]
    assert [step for step, _ in past.counted_after(6)] == [7, 8, 9, 10, 11]
    assert [batch["x"].item() for _, batch in past.counted_after(9) if batch] == [10.0, 11.0]
    assert past.saved == 9
    latest = past.snapshots.latest()
    assert latest is not None
    assert (latest.step, latest.random_state) == (9, b"seed")
    assert latest.state["w"].item() == 9.0
    assert latest.placement == {"f": "b", "g": "a"}


def test_a_step_that_has_not_counted_is_not_repeated(tmp_path: Path) -> None:
    """It is done for the first time, with the batch that it was given last."""
    past, _ = after(4, tmp_path)
    past.take(5, {"x": torch.tensor([1.0])})
    past.take(5, None)
    assert [step for step, _ in past.counted_after(3)] == [4]
    assert past.batch(5) is None
    past.counted = 5
    assert past.counted_after(4) == [(5, None)]


def test_a_batch_is_kept_as_it_was(tmp_path: Path) -> None:
    """Loops use one buffer for all batches."""
    past, buffer = ReplayLog.of(tmp_path, JOB), torch.zeros(2)
    for step in (1, 2):
        past.take(step, {"x": buffer.fill_(step)})
        past.counted = step
    kept = [batch["x"].tolist() for _, batch in past.counted_after(0) if batch]
    assert kept == [[1.0, 1.0], [2.0, 2.0]]


def test_a_gap_is_not_stepped_over(tmp_path: Path) -> None:
    """The only snapshot left is from before a run was continued, or of a run that went further:
    the steps between are of batches that this run has not seen.
    """
    after(6, tmp_path)
    again = ReplayLog.of(tmp_path, JOB)
    again.take(7, None)
    again.counted = 7
    assert again.counted_after(6) == [(7, None)]
    for elsewhere in (3, 8):
        with pytest.raises(RunError, match="cannot be repeated") as caught:
            again.counted_after(elsewhere)
        assert caught.value.where == f"{tmp_path}: step {elsewhere}"


def test_a_full_disk_leaves_the_snapshots_before_and_all_batches(tmp_path: Path) -> None:
    """What was begun is removed."""
    past, workers = after(8, tmp_path)
    workers.full = True
    with pytest.raises(OSError, match="No space left"):
        past.save(workers, 8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003", "step-00000006"]
    assert [step for step, _ in past.counted_after(3)] == [4, 5, 6, 7, 8]


def test_a_folder_that_cannot_be_resumed_is_unlocked(tmp_path: Path) -> None:
    """Who mends it need not end the process first."""
    past, _ = after(3, tmp_path)
    past.lock.release()
    (tmp_path / "step-00000003" / "snapshot.json").unlink()
    with pytest.raises(InputError, match="no snapshot is undamaged"):
        ReplayLog.of(tmp_path, JOB)
    (tmp_path / "step-00000003").rename(tmp_path / "broken")
    assert ReplayLog.of(tmp_path, JOB).counted == 0


def test_a_run_in_the_same_folder_goes_on_from_its_last_snapshot(tmp_path: Path) -> None:
    """What was done after it counts no more."""
    after(8, tmp_path)
    again = ReplayLog.of(tmp_path, JOB)
    assert again.counted == again.saved == 6
    assert again.counted_after(6) == []
    assert ReplayLog.of(tmp_path / "new", JOB).counted == 0
