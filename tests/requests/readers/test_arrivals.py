"""Measured arrival times, those of the Azure traces among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.requests.readers.arrivals import read_arrivals

HEAD = "ContextTokens,TIMESTAMP\n"


def test_seconds_from_the_first_request(tmp_path: Path) -> None:
    """In order, with seven digits of a second; empty lines hold none."""
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD}1,2023-11-16 18:17:04.5000000\n\n2,2023-11-16 18:17:03.0000000\n")
    assert read_arrivals(path).tolist() == [0.0, 1.5]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "holds no requests"),
        (HEAD, "holds no requests"),
        (f"{HEAD}1\n", r"line 2: has no time \(got '1'"),
        (f"{HEAD}1,x\n", r"line 2: has no time \(got '1,x'"),
        ("x" * 200_000, "line 1: is not valid CSV"),
    ],
)
def test_files_that_are_no_trace_are_refused(tmp_path: Path, text: str, match: str) -> None:
    """With the line; a field that is too long is refused, too."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=match):
        read_arrivals(path)
