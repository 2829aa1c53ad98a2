"""Saved profiles are read back equal, with their machine."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.profiling import measuring, profiler
from placewright.profiling import profiler as table_file
from placewright.profiling.profile_warnings import OtherMachineWarning
from placewright.profiling.profiler import ProfileTable, profile, profile_key
from tests.runtime.chain import diamond

GRAPH, _ = diamond()
KEY = profile_key(GRAPH, "isolated", 1)
SECONDS = np.array([1.0, 2.0, np.nan, 4.0])


def filled(path: Path) -> ProfileTable:
    """A kept table with one measurement."""
    table = ProfileTable.kept(path)
    table.add(KEY, GRAPH, SECONDS)
    return table


def test_a_measurement_is_in_the_file_at_once(tmp_path: Path) -> None:
    """Nobody has to write it; there is no file before it; what was refused stays unknown."""
    path = tmp_path / "t.json"
    table = ProfileTable.kept(path)
    assert not path.exists()
    table.add(KEY, GRAPH, SECONDS)
    assert np.array_equal(ProfileTable.read(path).seconds(KEY, GRAPH), SECONDS, equal_nan=True)
    assert list(tmp_path.iterdir()) == [path]


def test_what_processes_measure_at_the_same_time_is_all_kept(tmp_path: Path) -> None:
    """Each opened the table before the others wrote it."""
    path = tmp_path / "t.json"
    tables = [ProfileTable.kept(path) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:  # a lock belongs to an open file, not to a process
        list(pool.map(lambda k: tables[k].keep(str(k), {"a": float(k)}), range(8)))
    assert ProfileTable.read(path).entries == {str(k): {"a": float(k)} for k in range(8)}


def test_a_table_that_was_only_locked_is_empty(tmp_path: Path) -> None:
    """As a process leaves it that is killed between the lock and the first write."""
    path = tmp_path / "t.json"
    path.touch()
    table = filled(path)
    assert list(ProfileTable.read(path).entries) == list(table.entries) == [KEY]


def test_ctrl_c_loses_only_what_it_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured before is kept."""

    def measured(_graph: object, *, cores: int) -> Any:
        if cores == 2:
            raise KeyboardInterrupt
        return SECONDS

    monkeypatch.setattr(profiler, "cores_to_measure", lambda device: device.cores)
    monkeypatch.setattr(measuring, "isolated_seconds", measured)
    path = tmp_path / "t.json"
    cluster = Cluster((Device("a", cores=1), Device("b", cores=2)))
    with pytest.raises(KeyboardInterrupt):
        profile(GRAPH, cluster, method="isolated", table=ProfileTable.kept(path))
    assert list(ProfileTable.read(path).entries) == [KEY]


def test_a_write_that_is_broken_off_leaves_the_old_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the half of a new one, nor a draft beside it."""
    path = tmp_path / "t.json"
    table, write_bytes = filled(path), Path.write_bytes
    before = path.read_bytes()

    def broken_off(file: Path, content: bytes) -> int:
        write_bytes(file, content[: len(content) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", broken_off)
    with pytest.raises(KeyboardInterrupt):
        table.add("another", GRAPH, SECONDS)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_linked_table_stays_linked(tmp_path: Path) -> None:
    """The file behind the link is the one that is written."""
    link, path = tmp_path / "link.json", tmp_path / "t.json"
    link.symlink_to(path)
    filled(link)
    assert link.is_symlink()
    assert KEY in ProfileTable.read(path).entries


def test_a_table_of_another_machine_is_reported_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds is used; what is measured here is no measurement of that machine."""
    path = tmp_path / "t.json"
    filled(path)
    before = path.read_bytes()
    monkeypatch.setattr(table_file, "cpu_model", lambda: "Another CPU")
    with pytest.warns(OtherMachineWarning, match=r"t\.json was measured on another machine"):
        table = ProfileTable.kept(path)
    table.add("another", GRAPH, SECONDS)
    assert list(table.entries) == [KEY, "another"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 2}, "schema_version: must be 1"),
        ({"machine": ...}, "machine: is missing"),
        ({"extra": 1}, "extra: unknown key 'extra'"),
        ({"entries": {"k": {"a": -1}}}, r"entries\.k\.a: must be greater"),
        ({"entries": {"k": {"a": float("inf")}}}, r"entries\.k\.a: must be a finite"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_field(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    """Four parts, as everywhere."""
    path = tmp_path / "t.json"
    filled(path)
    data = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))
    with pytest.raises(InputError, match=rf"t\.json: {says}"):
        ProfileTable.kept(path)


def test_a_folder_that_is_not_there_is_an_error_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    """Names the file."""
    with pytest.raises(InputError, match=r"t\.json: cannot be written"):
        ProfileTable.kept(tmp_path / "missing" / "t.json")
