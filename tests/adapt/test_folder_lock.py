"""The lock of a snapshot folder: one run at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from placewright.adapt.snapshot import FolderLock
from placewright.errors import InputError


def test_a_second_run_is_refused_until_the_first_one_lets_go(tmp_path: Path) -> None:
    """Whether it is released or forgotten; nothing is left in the folder."""
    folder = tmp_path / "new"
    first = FolderLock(folder)
    with pytest.raises(InputError, match="another run is using this folder"):
        FolderLock(folder)
    first.release()
    first.release()
    assert first.released
    second = FolderLock(folder)
    assert not second.released
    del second
    FolderLock(folder).release()
    assert list(folder.iterdir()) == []


def test_what_was_forked_meanwhile_neither_keeps_nor_ends_it(tmp_path: Path) -> None:
    """A loader's process has a copy of everything that was open."""
    claim = FolderLock(tmp_path)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        claim.release()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(InputError):
        FolderLock(tmp_path)
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    claim.release()
    FolderLock(tmp_path).release()
    os.close(read)
    os.close(write)
    os.waitpid(child, 0)
