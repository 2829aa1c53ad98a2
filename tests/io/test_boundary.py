"""Parsing of files, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.errors import InputError, UnknownNameError
from placewright.io.boundary import (
    FileModel,
    UnknownFieldWarning,
    field_path,
    parse_json,
    parse_yaml,
    read_text,
    validate,
    warn_unknown,
)


class Leaf(FileModel):
    size: int


class Tree(FileModel):
    leaves: tuple[Leaf, ...] = ()
    first: Leaf | None = None


def test_a_path_is_written_as_in_code() -> None:
    """Positions in brackets, keys with dots."""
    assert field_path(("devices", 1, "memory")) == "devices[1].memory"
    assert field_path(()) == "file"


@pytest.mark.parametrize(
    "data", [{"leaves": [{"size": 1, "sise": 2}]}, {"first": {"size": 1, "sise": 2}}]
)
def test_an_unknown_key_offers_those_of_its_own_level(data: dict[str, object]) -> None:
    """Inside a list or an optional field, too."""
    with pytest.raises(UnknownNameError, match="did you mean 'size'"):
        validate(Tree, data, where="t.json")


def test_no_file_no_text_no_json(tmp_path: Path) -> None:
    """Each error has the file's name."""
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_text(tmp_path / "b")
    with pytest.raises(InputError, match=r"No such file.*\n.*looked for in"):
        read_text(tmp_path / "none")
    (tmp_path / "graph.json").touch()
    with pytest.raises(InputError, match=r"did you mean '.*graph\.json'"):
        read_text(tmp_path / "grahp.json")
    with pytest.raises(InputError, match="give a file inside it"):
        read_text(tmp_path)
    with pytest.raises(InputError, match=r"x\.json: is not valid JSON .*line 1"):
        parse_json("{", where="x.json")
    with pytest.raises(InputError, match="is not valid JSON"):
        parse_json("[" * 100_000, where="x.json")


@pytest.mark.parametrize("value", ["9" * 5_000, "2026-13-45"])
def test_values_that_python_cannot_make_are_told_as_errors(value: str) -> None:
    """A number with thousands of digits and a date that does not exist, in either format."""
    with pytest.raises(InputError, match=r"x: is not valid"):
        parse_yaml(f"n: {value}", where="x")
    with pytest.raises(InputError, match=r"x: is not valid"):
        parse_json(f'{{"n": {value}}}', where="x")


def test_unknown_fields_of_published_files_are_told() -> None:
    """By place, with the nearest field that the format has."""
    data = {"nodes": [{"cont": 1, "count": 2}], "plan": {}, "plans": 3}
    with pytest.warns(UnknownFieldWarning) as found:
        warn_unknown(data, {"": "nodes plan", "nodes.*": "count", "plan.*": "x"}, "f")
    assert [str(w.message).partition(" ")[2] for w in found] == [
        "plans is not read: the format has no such field; did you mean 'plan'?",
        "nodes[0].cont is not read: the format has no such field; did you mean 'count'?",
    ]
