"""What a run can go back to, with workers that only write a file."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from placewright.adapt.past import Past


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


JOB: Any = SimpleNamespace(
    state_bytes=4, graph=SimpleNamespace(name="net", operator_names=("f", "g"))
)
ADAPTATION: Any = SimpleNamespace(
    problem=SimpleNamespace(device_names=("a", "b")),
    plan=SimpleNamespace(placement=np.array([1, 0])),
)


def after(steps: int, folder: Path, every: int = 3) -> tuple[Past, Any]:
    """A past of so many steps with a snapshot after each third."""
    past, workers = Past.of(folder, "net"), Workers()
    for step in range(1, steps + 1):
        past.take(step, {"x": torch.tensor([float(step)])})
        past.counted, workers.value = step, float(step)
        if step % every == 0:
            past.save(JOB, workers, ADAPTATION, step)  # type: ignore[arg-type]
    return past, workers


def test_from_every_snapshot_that_is_left_the_run_can_be_repeated(tmp_path: Path) -> None:
    """The last two of them; batches from before the older one are forgotten."""
    past, _ = after(11, tmp_path)
    assert [p.name for p in past.snapshots.whole()] == ["step-00000006", "step-00000009"]
    assert [step for step, _ in past.counted_after(6)] == [7, 8, 9, 10, 11]
    assert [batch["x"].item() for _, batch in past.counted_after(9) if batch] == [10.0, 11.0]
    assert [step for step, _ in past.counted_after(0)] == [7, 8, 9, 10, 11]
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


def test_a_full_disk_leaves_the_snapshots_before_and_all_batches(tmp_path: Path) -> None:
    """What was begun is removed."""
    past, workers = after(8, tmp_path)
    workers.full = True
    with pytest.raises(OSError, match="No space left"):
        past.save(JOB, workers, ADAPTATION, 8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003", "step-00000006"]
    assert [step for step, _ in past.counted_after(3)] == [4, 5, 6, 7, 8]


def test_a_run_in_the_same_folder_goes_on_from_its_last_snapshot(tmp_path: Path) -> None:
    """What was done after it counts no more."""
    after(8, tmp_path)
    again = Past.of(tmp_path, "net")
    assert again.counted == 6
    assert again.counted_after(6) == []
    assert Past.of(tmp_path / "new", "net").counted == 0
