"""Parsing of files, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.errors import InputError, UnknownNameError
from placewright.io.boundary import (
    LONGEST_YAML,
    FileModel,
    csv_rows,
    field_path,
    parse_json,
    parse_yaml,
    read_text,
    validate,
)


class Leaf(FileModel):
    size: int


class Pair(FileModel):
    pair: tuple[int, int]


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


@pytest.mark.parametrize("value", ["9" * 5_000, "!!timestamp 2026-13-45"])
def test_values_that_python_cannot_make_are_told_as_errors(value: str) -> None:
    """A number with thousands of digits and a date that does not exist, in either format."""
    with pytest.raises(InputError, match=r"x: is not valid"):
        parse_yaml(f"n: {value}", where="x")
    with pytest.raises(InputError, match=r"x: is not valid"):
        parse_json(f'{{"n": {value}}}', where="x")


@pytest.mark.parametrize(
    "value",
    ["!!bool foo", "!!int ''", "!!float foo", "!!timestamp foo", "!!binary x", "!!set {a}",
     "&a [*a]", "1.0e+999", "9" * 400, f"0x{'f' * 5000}", '"\\ud800"', "!!python/name:os.system"],
)  # fmt: skip
def test_yaml_that_json_could_not_hold_is_refused(value: str) -> None:
    """Tags that do not fit or make objects, loops, numbers too large, halves of characters."""
    with pytest.raises(InputError, match="x: is not valid YAML"):
        parse_yaml(f"n: {value}", where="x")


@pytest.mark.parametrize("end", ["0", "0.5"])
def test_a_yaml_number_of_too_many_digits_is_refused_unread(end: str) -> None:
    """To the base 60 a file of half a megabyte would take minutes."""
    with pytest.raises(InputError, match="a number has more than 4300 characters"):
        parse_yaml("n: " + "1:" * 200_000 + end, where="x")


def test_yaml_has_anchors_infinity_and_dates_as_text() -> None:
    """What people write by hand; an anchor that is used once more is no flood."""
    text = "a: &a {b: 1}\nc: {<<: *a, d: .inf}\ne: 2026-01-02\nf: *a"
    found = parse_yaml(text, where="x")
    assert found["c"] == {"b": 1, "d": float("inf")}
    assert found["e"] == "2026-01-02"
    assert found["f"] == found["a"]


def test_a_flood_of_aliases_is_refused_before_it_is_made() -> None:
    """Nine lists of nine each, eight levels deep: 400 bytes stand for 40 million."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 9)]
    with pytest.raises(InputError, match="aliases repeat more than"):
        parse_yaml("\n".join(lines), where="x")


@pytest.mark.parametrize(
    "value",
    ["1e999", "-1e999", "9" * 400 + ".0", "9" * 400, '"\\ud800"', '"\\udfff\\ud800"'],
)
def test_json_numbers_and_texts_that_are_none_are_refused(value: str) -> None:
    """What would be infinity, with its line, and halves of surrogate pairs."""
    with pytest.raises(InputError, match=r"x(, line 2)?: is not valid JSON"):
        parse_json(f'{{\n"n": {value}}}', where="x")


def test_json_with_large_but_right_numbers_is_read() -> None:
    """Of 64 bits, of more as floats, many digits, small exponents, whole surrogate pairs."""
    text = "[9223372036854775807, 9223372036854775808, 0.12345678901234567890, 1e-999, 1e300, "
    text += '"\\ud83d\\ude00"]'
    assert parse_json(text, where="x") == [
        2**63 - 1,
        2.0**63,
        0.12345678901234568,
        0.0,
        1e300,
        "😀",
    ]


def test_an_entry_that_is_missing_in_a_yaml_list_is_named_at_the_list() -> None:
    """A pair of one: the second part has no line of its own."""
    text = "pair:\n  - 1\n"
    with pytest.raises(InputError, match=r"x, line 2: pair\[1\]: is missing"):
        validate(Pair, parse_yaml(text, where="x"), where="x", text=text)


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "x" * 300, "x/" * 3000, "none/x", ""])
def test_names_that_no_file_can_have_are_refused(name: str, tmp_path: Path) -> None:
    """NUL, half of a surrogate pair, too long; with what to do next."""
    with pytest.raises(InputError, match="next: "):
        read_text(tmp_path / name if name else "")


def test_messages_stay_short_whatever_the_file_holds() -> None:
    """A name of 100,000 characters is shown at both of its ends."""
    for data in ({"first": {"x" * 100_000: 1}}, {"first": "x" * 100_000}):
        with pytest.raises(InputError) as error:
            validate(Tree, data, where="y" * 100_000)
        assert len(str(error.value)) < 4000


def test_yaml_that_would_take_minutes_is_refused() -> None:
    """With the format that does not."""
    text = "x" * (LONGEST_YAML + 1)
    with pytest.raises(InputError, match=r"a\.yaml: is too long for YAML.*at most.*\n.*as JSON"):
        parse_yaml(text, where="a.yaml")


def test_rows_of_csv_and_what_is_none(tmp_path: Path) -> None:
    """A field that is too long for Python's reader is named with its line."""
    path = tmp_path / "t.csv"
    path.write_text('a,"b\nc"\n1,2\n')
    assert list(csv_rows(path)) == [["a", "b\nc"], ["1", "2"]]
    path.write_text("a,b\n" + "x" * 200_000)
    with pytest.raises(
        InputError, match=r"t\.csv, line 2: is not valid CSV .*larger than.*\n  next"
    ):
        list(csv_rows(path))
