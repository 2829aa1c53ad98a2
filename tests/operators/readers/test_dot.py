"""Graphs of Graphviz."""

from __future__ import annotations

from pathlib import Path

import pytest

import placewright
from placewright.errors import InputError

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


def test_what_the_language_allows(tmp_path: Path) -> None:
    """Comments, case, chains, HTML, strings in parts, attributes of the graph, no semicolons."""
    path = tmp_path / "g.dot"
    path.write_text(
        """/* of two
lines */ DiGraph "g" {
# a line of a preprocessor
rankdir=LR, graph [label=<a <b>"{"</b>>] node [color=red]
a [cpu=1. label="{ \\"a\\""] [gpu=.5]  // behind
"b" + "c" [cpu="1e0"; gpu=2] "edge" [cpu=1,gpu=1,]
a -> bc:n -> "edge" [bytes="1" + "e6", key=0]
}"""
    )
    problem = placewright.read(f"dot:{path}?bandwidth=1e9")
    assert problem.operator_names == ("a", "bc", "edge")
    assert problem.compute_s.tolist() == [[1.0, 0.5], [1.0, 2.0], [1.0, 1.0]]
    assert problem.tensor_bytes.tolist() == [1e6, 1e6]


@pytest.mark.parametrize(("kind", "sent"), [("digraph", 7e6), ("strict digraph", 3e6)])
def test_edges_that_are_given_twice(tmp_path: Path, kind: str, sent: float) -> None:
    """They are parallel, and the last one in a strict graph; ports only draw."""
    path = tmp_path / "g.dot"
    again = 'load:n -> "to the left":s:sw [bytes="3e6"];\n}'
    path.write_text(TEXT.replace("digraph", kind).replace("}", again))
    problem = placewright.read(f"dot:{path}?bandwidth=1e9")
    assert problem.operator_names == ("load", "to the left")
    assert problem.tensor_bytes.tolist() == [sent]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("digraph", "graph", "no directed graph"),
        ("}", "", "no directed graph"),
        ("}", "subgraph {" * 3000 + "}" * 3001, "no directed graph"),
        ("}", "{" * 30 + "}" * 31, "line 6: got '{'"),
        ("}", '{"a":' * 100_000, "line 6: got '{'"),
        ("}", "} digraph {}", "line 6: got 'digraph'"),
        ("}", 'a [label="', "line 6: got '\"'"),
        ("}", "a [label=<b>", "line 7 ends it"),
        ("node [", "/* node [", "line 2: got '/. node"),
        ("->", "--", "line 5: got '--'"),
        ("load ->", "load-", "line 5: got '- "),
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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("node [shape=box]", "node [cpu=1]", "a default of 'cpu' is not read"),
        ("node [shape=box]", "edge [bytes=5]", "a default of 'bytes' is not read"),
        ('[bytes="4e6"]', "[byte=4]", "did you mean 'bytes'"),
        ('load -> "to the left"', "load -> {load}", "joins groups of nodes"),
    ],
)
def test_what_would_be_left_out_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """Defaults, misspelt attributes and groups: bytes would silently be none."""
    path = tmp_path / "g.dot"
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(InputError, match=message):
        placewright.read(f"dot:{path}")


def test_a_graph_that_graphviz_has_laid_out_is_the_same(tmp_path: Path) -> None:
    """Sizes that it writes are no devices, and what two lines say of a node is taken together."""
    path = tmp_path / "g.dot"
    path.write_text(TEXT)
    plain = placewright.read(f"dot:{path}")
    drawn = TEXT.replace("cpu=0.2, gpu=0.5", "height=0.5, width=0.75, penwidth=2, cpu=0.2")
    drawn = drawn.replace("load ->", "load [gpu=0.5];\n  load ->").replace(
        "bytes=", "weight=3, bytes="
    )
    path.write_text(drawn)
    assert placewright.read(f"dot:{path}").hash() == plain.hash()


def test_links_are_those_of_the_cluster_or_alike(tmp_path: Path) -> None:
    """Not both: one would be left out."""
    path = tmp_path / "g.dot"
    path.write_text("digraph g { a [cpu=1]; }")
    with pytest.raises(InputError, match="the cluster has its own links"):
        placewright.read(f"dot:{path}", cluster="edge-duo", bandwidth_bytes=5.0)
