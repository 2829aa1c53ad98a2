"""The table that the emulator shares with those who change a link."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.testbed.link_table import FIELDS, LinkTable


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
