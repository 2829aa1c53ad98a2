"""Which nodes of a GraphDef are a step; plain objects stand for protocol buffers."""

from __future__ import annotations

from types import SimpleNamespace

from placewright.capturing.tensorflow.step_graph import ancestors, ends, node_of


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
