"""Errors of workers that run out of memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from placewright.errors import WorkerError
from placewright.runtime.memory import KILLED, MemoryUse, asked_bytes, explained, out_of_memory

ENDED = WorkerError("ended", where="device 'a'", by=KILLED, hint="look there")


HELD, ASKED = 1 << 20, 1 << 21
STATED = WorkerError("ended", hint=str(out_of_memory(HELD, ASKED)))
AT_AN_ORDER = WorkerError("ended", by="MemoryError: no")


@pytest.mark.parametrize(
    ("error", "expected", "by"),
    [
        (STATED, 0, "held 1 MiB and asked for 2 MiB more"),
        (STATED, 1 << 20, "2 MiB above"),
        (STATED, 1 << 22, "the judge expected 4 MiB, at least 1 MiB of it are missing"),
        (AT_AN_ORDER, 1 << 20, "1 MiB is what the judge"),
        (AT_AN_ORDER, 0, "MemoryError: no"),
        (ENDED, 1 << 20, "signal 9; the judge expected 1 MiB"),
    ],
)
def test_an_error_says_by_how_much_the_judge_was_wrong(
    error: WorkerError, expected: float, by: str
) -> None:
    """Above, below, and where the worker could not say what it had."""
    assert by in explained(error, expected).by


def test_other_errors_stay_as_they_are() -> None:
    """Among them a killed worker of which nothing was expected."""
    other = WorkerError("raised", by="KeyError: 1")
    assert explained(other, 1.0) is other
    assert explained(ENDED, 0.0) is ENDED


@pytest.mark.parametrize(
    ("error", "wanted_bytes"),
    [
        (
            RuntimeError("can't allocate memory: you tried to allocate 12 bytes"),
            12,
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.5 GiB"), 5 << 29),
        (MemoryError(), 0),
        (RuntimeError("shapes differ"), None),
    ],
)
def test_what_an_allocation_asked_for_is_read_from_its_error(
    error: BaseException, wanted_bytes: int | None
) -> None:
    """On the CPU and on GPUs."""
    assert asked_bytes(error) == wanted_bytes


SIZE = 1 << 26


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no account of peaks")
def test_pages_of_files_are_not_counted(tmp_path: Path) -> None:
    """A file of 64 MiB that is read counts nothing; a tensor of 64 MiB counts, also once freed."""
    file = tmp_path / "library"
    with file.open("wb") as empty:
        empty.truncate(SIZE)
    use = MemoryUse(["cpu"])
    use.begin()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as pages:
        assert not any(pages[k] for k in range(0, SIZE, mmap.PAGESIZE))
        (read,) = use.peaks()
        tensor = torch.ones(SIZE // 4)
        del tensor
        (computed,) = use.peaks()
    assert [read, computed] == pytest.approx([0, SIZE], abs=SIZE / 8)


def test_calls_stay_as_they_are_where_no_system_says_what_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No ``/proc``: nothing is watched, and nothing fails."""

    def absent(*given: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr("placewright.runtime.memory.os.open", absent)
    memory = MemoryUse(["cpu"])
    memory.limit_bytes = 1.0
    assert memory.spared(torch.ones, 1 << 30) is torch.ones
