"""Data in files whose names say how."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.stored import read_data, write_data

DATA = {"name": "ü", "numbers": [1, 2.5e-7, 1e-5, None], "inner": {"yes": "no"}}


@pytest.mark.parametrize("end", ["json", "yaml", "yml", "json.gz", "yaml.gz"])
def test_data_are_read_back_equal(tmp_path: Path, end: str) -> None:
    """Twice written is the same file; packed only if the name says so."""
    path = write_data(DATA, tmp_path / f"data.{end}")
    assert read_data(path)[0] == DATA
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == end.endswith(".gz")
    assert write_data(DATA, tmp_path / f"other.{end}").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json.gz", b"{}", "cannot be read as gzip"),
        ("a.json.gz", gzip.compress(b"{}", mtime=0)[:-9], "cannot be read as gzip"),
        ("a.yaml.gz", gzip.compress(b"a: [1", mtime=0), "is not valid YAML"),
        ("a.json", b"a: 1", "is not valid JSON"),
    ],
)
def test_what_is_not_what_its_name_says_is_refused(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    """With the file's name."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=told) as caught:
        read_data(path)
    assert name in str(caught.value)
