"""The replay log, with workers that only write a file."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from placewright.adapt.replay_log import ReplayLog
from placewright.errors import InputError, RunError
from placewright.graph.graph import TensorSpec


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
