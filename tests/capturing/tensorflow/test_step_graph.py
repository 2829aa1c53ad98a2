"""Which nodes of a GraphDef are a step; plain objects stand for protocol buffers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from placewright.capturing.tensorflow.step_graph import (
    _forget_missing,
    ancestors,
    check_edges,
    ends,
    node_of,
)
from placewright.errors import InputError


def graph_def(*nodes: tuple[str, str, list[str]]) -> SimpleNamespace:
    """Nodes as (name, op, inputs)."""
    return SimpleNamespace(
        node=[SimpleNamespace(name=name, op=op, input=inputs) for name, op, inputs in nodes]
    )


def test_a_step_ends_where_nobody_reads_on() -> None:
    """Initialisation, the saver and unread constants are no ends; control edges are reading."""
    graph = graph_def(
        ("x", "Placeholder", []),
        ("unread", "Const", []),
        ("v", "VarHandleOp", []),
        ("value", "Const", []),
        ("assign", "AssignVariableOp", ["v", "value"]),
        ("init", "NoOp", ["^assign"]),
        ("read", "ReadVariableOp", ["v"]),
        ("loss", "Mul", ["x:0", "read"]),
        ("split", "Split", ["x", "loss:1"]),
        ("train", "NoOp", ["^loss"]),
        ("save", "SaveV2", ["read"]),
        ("all", "NoOp", ["^save"]),
    )
    assert ends(graph) == ["split", "train"]
    nodes = {node.name: node for node in graph.node}
    assert ancestors(nodes, ["train"]) == {"train", "loss", "x", "read", "v"}
    assert node_of("^a/b") == node_of("a/b:1") == "a/b"


def test_a_node_that_is_read_and_not_there_is_named() -> None:
    """With the node that reads it, for control edges too."""
    check_edges(graph_def(("x", "Const", []), ("y", "Relu", ["x:0", "^x"])), "g.pb")
    for reference in ("add/y", "z:1", "^z"):
        graph = graph_def(("x", "Const", []), ("y", "Relu", ["x", reference]))
        with pytest.raises(
            InputError, match=r"g\.pb: node 'y': reads a node that is not in .*\n  n"
        ):
            check_edges(graph, "g.pb")


def test_colocation_that_is_no_text_is_dropped() -> None:
    """A file may have any bytes in an attribute."""
    named = SimpleNamespace(list=SimpleNamespace(s=[b"loc:@\xff", b"loc:@x"]))
    node = SimpleNamespace(attr={"_class": named})
    _forget_missing(node, {"x"})
    assert named.list.s == [b"loc:@x"]
