"""Arrival times of the Azure traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.requests.readers.azure import azure_arrivals
from placewright.requests.serving.load import _of_file

HEAD = "ContextTokens,TIMESTAMP\n"


def test_seconds_from_the_first_request(tmp_path: Path) -> None:
    """In order, with seven digits of a second; empty lines hold none."""
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD}1,2023-11-16 18:17:04.5000000\n\n2,2023-11-16 18:17:03.0000000\n")
    assert azure_arrivals(path).tolist() == [0.0, 1.5]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "has no column TIMESTAMP"),
        (HEAD, "holds no requests"),
        (f"{HEAD}1\n", r"line 2: is no time \(got \[\]"),
        (f"{HEAD}1,x\n", r"line 2: is no time \(got \['x'\]"),
        ("x" * 200_000, "line 1: is not valid CSV"),
    ],
)
def test_files_that_are_no_trace_are_refused(tmp_path: Path, text: str, match: str) -> None:
    """With the line; a field that is too long is refused as arrivals of any file, too."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=match):
        azure_arrivals(path)
    with pytest.raises(InputError, match=r"no arrivals|is not valid CSV"):
        _of_file(str(path), 1.0, 1.0)
