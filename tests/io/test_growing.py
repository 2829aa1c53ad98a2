"""Files that grow while they are read."""

from __future__ import annotations

from pathlib import Path

from placewright.io.growing import end_of, json_lines


def test_the_end_of_a_file_that_may_not_be_there(tmp_path: Path) -> None:
    """Its last bytes, all of a short one, nothing of one that is missing or a folder."""
    path = tmp_path / "log.txt"
    assert end_of(path) == end_of(tmp_path, 5) == b""
    path.write_bytes(b"0123456789")
    assert [end_of(path, most) for most in (3, 10, 99, None)] == [b"789", *[b"0123456789"] * 3]


def test_lines_that_are_whole_are_read() -> None:
    """Not the one that was cut off, nor what is no object."""
    assert json_lines(b'ut": 1}\n{"a": 1}\n[2]\n3\n\n{"b": 2}\n{"c"') == [{"a": 1}, {"b": 2}]
