"""The record of a testbed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.errors import InputError
from placewright.testbed import Testbed, record
from placewright.testbed.record import (
    Process,
    Record,
    read_record,
    record_in,
    records,
    this_boot,
)
from placewright.testbed.teardown import sweep

texts = st.lists(st.text(), max_size=3).map(tuple)
processes = st.builds(Process, st.integers(1, 9999), st.integers(0, 10**9))
made = st.builds(
    Record,
    id=st.just("placewright-x-1"),
    cluster=st.text(),
    namespaces=texts,
    groups=texts,
    cpus=st.lists(st.integers(0, 99), min_size=1).map(tuple),
    links_cpu=st.integers(0, 99),
    boot=st.text(),
    made_ns=st.integers(0, 2**62),
    owners=st.lists(processes, max_size=3).map(tuple),
    whole=st.booleans(),
)


@given(made)
def test_a_record_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, kept: Record
) -> None:
    """Whatever names are in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "HOME", tmp_path_factory.mktemp("home"))
        kept.write()
        assert read_record(kept.folder) == kept == kept.now()
        assert records() == (kept,)
        assert replace(kept, made_ns=kept.made_ns + 1).now() is None


def test_a_record_of_a_single_owner_is_read(tmp_path: Path) -> None:
    """As versions before wrote it: whole, and that process's."""
    old = (
        '{"schema_version": 1, "id": "x", "cluster": "", "namespaces": [], "groups": [], '
        '"cpus": [0], "links_cpu": 0, "boot": "", "owner": %s}'
    )
    for owner, owners in (('{"pid": 7, "start": 8}', (Process(7, 8),)), ("null", ())):
        (tmp_path / record.RECORD).write_text(old % owner)
        assert read_record(tmp_path) == Record("x", "", (), (), (0,), 0, "", owners=owners)


def test_a_joining_run_is_an_owner_unless_the_testbed_is_kept() -> None:
    """Once, beside the others that still run; what is to stay once has no owner any more."""
    own, ended, parent = Process.this(), Process(os.getpid(), 0), Process.of(os.getppid())
    lent = Record("x", "", (), (), (0,), 0, this_boot(), owners=(ended, parent))
    joined = lent.joined(own, keep=False)
    assert joined.owners == joined.joined(own, keep=False).owners == (parent, own)
    assert (joined.others(own), joined.abandoned) == ((parent,), False)
    assert replace(lent, owners=(ended,)).abandoned
    kept = joined.joined(own, keep=True)
    assert kept.owners == kept.joined(own, keep=False).owners == ()
    assert not kept.abandoned


def test_a_process_is_not_a_later_one_of_its_number() -> None:
    """It is known by when it started; the dead are dead before they are buried."""
    own = Process.this()
    assert own.alive
    assert own.pid == os.getpid()
    assert not replace(own, start=own.start - 1).alive
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not Process(child.pid, own.start).alive
    child.wait()


def test_records_from_before_a_reboot_are_removed(
    duo: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are there, but it is another life of the machine: namespaces are empty names."""
    assert not duo.record.abandoned
    duo.down()
    old = replace(duo.record, boot="another life", owners=())
    old.write()
    remnant = Path("/run/netns") / old.namespaces[0]
    remnant.touch()
    assert old.abandoned
    sweep()
    assert not remnant.exists()
    assert old not in records()
    assert this_boot() == duo.record.boot


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": 1}', "[" * 100_000, "\xff"])
def test_a_damaged_record_is_named(text: str, tmp_path: Path) -> None:
    """With its file and what to do."""
    (tmp_path / record.RECORD).write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"testbed.json: is no record of a testbed"):
        read_record(tmp_path)


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Where a file stands in the place of its folder, or the name is too long."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / ("x" * 300)):
        with pytest.raises(InputError, match=r"testbed.json: cannot be read"):
            record_in(folder)
    assert record_in(tmp_path / "none") is None
