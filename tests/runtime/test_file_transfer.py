"""File transfer in orders, with workers in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from placewright.runtime import program
from placewright.runtime.engines import engine as group_module
from placewright.runtime.engines.engine import WorkerGroup
from placewright.runtime.program import FileTransfer

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
"""A worker closes nothing: it ends."""


class Group:
    """Two workers, of which the second may have a full disk."""

    names = ("a", "b")
    check_written = WorkerGroup.check_written
    distribute, collect = WorkerGroup.distribute, WorkerGroup.collect

    def __init__(self, why: str = "") -> None:
        self.workers, self.why = [FileTransfer(), FileTransfer()], ["", why]

    def order_all(self, verb: str, *arguments: Any) -> list[Any]:
        """As the worker obeys."""
        if verb == "write_file":
            pairs = zip(self.workers, self.why, strict=True)
            return [worker.pack(lambda p, why=why: self.write(p, why)) for worker, why in pairs]
        done = {"begin_file": FileTransfer.begin, "append_file": FileTransfer.append}
        return [done.get(verb, FileTransfer.take)(worker, *arguments) for worker in self.workers]

    def write(self, path: str, why: str) -> str:
        """What `state` does."""
        if why == "raise":
            raise OSError(28, "No space left on device")
        Path(path).write_bytes(b"state" * 5)
        return why


def test_a_file_is_handed_out_and_fetched_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every worker has a copy, and gives a file of its own."""
    monkeypatch.setattr(group_module, "PIECE_BYTES", 4)
    monkeypatch.setattr(program, "PIECE_BYTES", 4)
    group: Any = Group()
    (tmp_path / "given").write_bytes(b"0123456789")
    paths = group.distribute(tmp_path / "given")
    assert [Path(path).read_bytes() for path in paths] == [b"0123456789"] * 2
    files = [tmp_path / "0", tmp_path / "1"]
    group.collect("state", files)
    assert [file.read_bytes() for file in files] == [b"state" * 5] * 2
    assert [worker.take() for worker in group.workers] == [b""] * 2
    links = [os.readlink(f) for f in Path("/proc/self/fd").iterdir() if f.is_symlink()]
    assert not [link for link in links if link.endswith("/file (deleted)")], "room on the disk"


@pytest.mark.parametrize("why", ["No space left on device", "raise"])
def test_a_worker_that_cannot_write_is_named(tmp_path: Path, why: str) -> None:
    """As an error of the disk, with the worker's words; the others' files are not fetched."""
    group: Any = Group(why)
    with pytest.raises(OSError, match=r"device 'b' could not write: .*No space left on device"):
        group.collect("state", [tmp_path / "0", tmp_path / "1"])
    assert not list(tmp_path.iterdir())
