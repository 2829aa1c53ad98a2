"""Output files that cannot be written are refused before a command computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.io.output import (
    PIECE,
    cut_torn_line,
    end_of,
    json_lines,
    lines_since,
    naming,
    output_file,
)


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


def test_the_end_of_a_file_that_may_not_be_there(tmp_path: Path) -> None:
    """Its last bytes, all of a short one, nothing of one that is missing or a folder."""
    path = tmp_path / "log.txt"
    assert end_of(path) == end_of(tmp_path, 5) == b""
    path.write_bytes(b"0123456789")
    assert [end_of(path, most) for most in (3, 10, 99, None)] == [b"789", *[b"0123456789"] * 3]


def test_lines_that_are_whole_are_read() -> None:
    """Not the one that was cut off, nor what is no object."""
    assert json_lines(b'ut": 1}\n{"a": 1}\n[2]\n3\n\n{"b": 2}\n{"c"') == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("torn", [0, 1, 7, PIECE, 3 * PIECE + 5])
@pytest.mark.parametrize("lines", [b"", b"first\n", b"first\n\nsecond\n", b"x" * PIECE + b"\n"])
def test_a_torn_line_is_cut_off(tmp_path: Path, lines: bytes, torn: int) -> None:
    """However long it is; whole lines stay."""
    path = tmp_path / "log"
    path.write_bytes(lines + b"t" * torn)
    cut_torn_line(path)
    assert path.read_bytes() == lines
    cut_torn_line("/dev/full")


def test_a_file_that_grows_is_read_in_whole_lines(tmp_path: Path) -> None:
    """Each once; a line that is too long in pieces; nothing of a file that is not there."""
    path = tmp_path / "log"
    assert lines_since(path, 3, 10) == (b"", 3)
    path.write_bytes(b"one\ntwo\nthr")
    assert lines_since(path, 0, 10) == (b"one\ntwo\n", 8)
    assert lines_since(path, 8, 10) == (b"", 8)
    with path.open("ab") as file:
        file.write(b"ee and more\n")
    assert lines_since(path, 8, 10) == (b"three and ", 18)
    assert lines_since(path, 18, 10) == (b"more\n", 23)
