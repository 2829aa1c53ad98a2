"""Memory of a worker's devices: its own, without pages of files."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from placewright.runtime.memory_use import MemoryUse

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
