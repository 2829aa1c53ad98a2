"""Graphs of Graphviz."""

from __future__ import annotations

from pathlib import Path

import pytest

import placewright
from placewright.errors import InputError

pytest.importorskip("pydot")

TEXT = """digraph tasks {
  node [shape=box];
  load [cpu=0.2, gpu=0.5, label="Load"];
  "to the left" [cpu=1.2, gpu=0.1];
  load -> "to the left" [bytes="4e6"];
}
"""


def test_it_is_read_as_tasks(tmp_path: Path) -> None:
    """Names with spaces; what only draws is ignored."""
    path = tmp_path / "g.dot"
    path.write_text(TEXT)
    problem = placewright.read(f"dot:{path}?bandwidth=1e9")
    assert problem.operator_names == ("load", "to the left")
    assert problem.device_names == ("cpu", "gpu")
    assert problem.tensor_bytes.tolist() == [4e6]
    assert problem.seconds_per_byte[0, 1] == 1e-9
    assert placewright.solve(problem, "heft").value == pytest.approx(0.304)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("digraph", "graph", "no directed graph"),
        ("}", "", "no directed graph"),
        ("cpu=0.2", "cpu=fast", "'cpu' must be a number"),
        ('"4e6"', "4e6", "must be a number"),
        ('load -> "to the left"', "load -> load", "its producer reads it"),
        ("load -> ", "lode -> ", "lode"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    """And what is wrong in it."""
    path = tmp_path / "g.dot"
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        placewright.read(f"dot:{path}")
    assert "g.dot" in str(caught.value)
