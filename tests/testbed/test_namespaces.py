"""TCP settings of a namespace, on imitated kernel folders."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.testbed import namespaces
from placewright.testbed.namespaces import FIELDS, LinkTable


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """One that was started with ``ipv6.disable=1``."""
    (tmp_path / "ipv4").mkdir()
    return tmp_path


def refused(kernel: Path) -> bool:
    """Whether the shell says that something went wrong."""
    return bool(subprocess.run(["sh", "-c", namespaces.settings(kernel)], check=False).returncode)


def test_ipv6_is_switched_off_where_there_is_any(kernel: Path) -> None:
    """A kernel without it is fine, and gets the rest."""
    assert not refused(kernel)
    assert (kernel / "ipv4/tcp_ecn").read_text() == "1\n"
    assert not (kernel / "ipv6").exists()
    switch = kernel / "ipv6/conf/all/disable_ipv6"
    switch.parent.mkdir(parents=True)
    switch.write_text("0\n")
    assert not refused(kernel)
    assert switch.read_text() == "1\n"


@pytest.mark.parametrize("setting", ["tcp_ecn", "tcp_slow_start_after_idle", "tcp_wmem"])
def test_no_refusal_goes_unnoticed(kernel: Path, setting: str) -> None:
    """Whichever of them it is, and nothing is switched off for it."""
    (kernel / "ipv4" / setting).mkdir()
    switch = kernel / "ipv6/conf/all/disable_ipv6"
    switch.parent.mkdir(parents=True)
    switch.write_text("0\n")
    assert refused(kernel)
    assert switch.read_text() == "0\n"


@given(st.data())
def test_two_readers_see_one_table(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Each field of each way is its own, and a change by one is seen by the other at once."""
    path: Path = tmp_path_factory.mktemp("table") / "links"
    count = data.draw(st.integers(1, 6))
    writer = LinkTable.create(path, count)
    reader = LinkTable(path)
    writer.emulator_pid = 4_000_000
    written = {
        (field, i, j): data.draw(st.floats(0, 1e12))
        for field in FIELDS
        for i in range(count)
        for j in range(count)
    }
    for (field, i, j), value in written.items():
        writer.set(field, i, j, value)
    assert {key: reader.get(*key) for key in written} == written
    assert (reader.count, reader.emulator_pid) == (count, 4_000_000)
