"""Output files that cannot be written are refused before a command computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.io.output import naming, output_file


def test_a_file_that_cannot_be_written_is_refused_early(tmp_path: Path) -> None:
    """A folder, and a file in no folder; a device takes what is written."""
    for good in (None, tmp_path / "new.json", Path("/dev/null")):
        assert output_file(good) == good
    for bad, message in ((tmp_path, "is a folder"), (tmp_path / "no" / "a", "No such file")):
        with pytest.raises(InputError, match=message):
            output_file(bad)


def test_an_error_of_a_full_disk_gets_the_name_of_the_file() -> None:
    """`write` fails without one; an error that has a name keeps it."""
    with pytest.raises(OSError, match="No space left on device: 'shard'"), naming("shard"):
        Path("/dev/full").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match="'/none/x'"), naming("shard"):
        Path("/none/x").write_bytes(b"x")
