"""Nodes as plain data become a graph: no TensorFlow is needed."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from placewright.capturing.flops import Work
from placewright.capturing.tensorflow.model import SHARED_BYTES, node_graph, work_of_node
from placewright.errors import UnsupportedError
from placewright.graph.graph import Graph


def node(name: str, op: str, *inputs: str, **more: Any) -> dict[str, Any]:
    """A node with one float output of four elements unless `more` says otherwise."""
    plain = {"outputs": [["float32", [4]]], "bytes": 0, "colocate": [], "attrs": {}}
    return {"name": name, "op": op, "inputs": list(inputs), **plain, **more}


def variable_step() -> Graph:
    """``w -= x * read(w)``, and an operator that waits for it through a constant."""
    handle = [["resource", []]]
    return node_graph(
        "step",
        [
            node("x", "Placeholder"),
            node("w", "VarHandleOp", outputs=handle, bytes=16),
            node("read", "ReadVariableOp", "w"),
            node("mul", "Mul", "x", "read"),
            node("update", "AssignSubVariableOp", "w", "mul", outputs=[]),
            node("one", "Const", "^update", bytes=4),
            node("next", "Add", "x", "one"),
        ],
    )


def test_nodes_that_compute_nothing_are_no_operators() -> None:
    """Inputs, constants and variables follow their readers; bytes are resident there."""
    graph = variable_step()
    assert graph.operator_names == ("read", "mul", "update", "next")
    resident = {op.name: op.resident_bytes for op in graph.operators}
    assert resident == {"read": 16, "mul": 0, "update": 0, "next": 4}
    assert graph.operators[1].kind == "tensorflow.Mul"


def test_readers_of_a_variable_stay_together() -> None:
    """A handle joins; a value does not."""
    groups = {op.name: op.colocation for op in variable_step().operators}
    assert groups == {"read": "read", "mul": "", "update": "read", "next": ""}


def test_control_dependencies_are_tensors_without_bytes() -> None:
    """Through a constant they reach its readers."""
    tensors = {t.name: t for t in variable_step().tensors}
    assert tensors["after:update"].consumers == ("next",)
    assert tensors["after:update"].bytes == 0
    assert tensors["read"].bytes == 16


def test_a_large_constant_keeps_its_readers_together_and_a_small_one_does_not() -> None:
    """Copies of small constants are cheap."""
    for size, group in ((SHARED_BYTES, "a"), (SHARED_BYTES - 1, "")):
        graph = node_graph(
            "g",
            [
                node("c", "Const", bytes=size),
                node("a", "Relu", "c"),
                node("b", "Relu", "c"),
                node("d", "Relu", "b:0", colocate=["d"]),
            ],
        )
        assert [op.colocation for op in graph.operators] == [group, group, ""]
        held = [op.resident_bytes for op in graph.operators]
        assert held == ([size, 0, 0] if group else [size, size, 0])


def test_colocation_by_name_and_outputs_by_number() -> None:
    """``_class loc:@`` joins; a second output is a tensor of its own."""
    outputs = [["float32", [4]], ["int64", [2, 3]]]
    graph = node_graph(
        "g",
        [
            node("x", "Placeholder"),
            node("top", "TopK", "x", outputs=outputs),
            node("a", "Relu", "top", colocate=["top"]),
            node("b", "Neg", "top:1"),
        ],
    )
    assert [op.colocation for op in graph.operators] == ["top", "top", ""]
    assert {t.name: (t.bytes, t.consumers) for t in graph.tensors[:2]} == {
        "top": (16, ("a",)),
        "top#1": (48, ("b",)),
    }


def test_gradients_and_updates_have_phases() -> None:
    """By scope, by what changes variables, and what only that needs."""
    graph = node_graph(
        "g",
        [
            node("x", "Placeholder"),
            node("w", "VarHandleOp", outputs=[["resource", []]]),
            node("loss", "Square", "x"),
            node("gradient_tape/square", "Mul", "loss"),
            node("scaled", "Mul", "gradient_tape/square"),
            node("set", "AssignSubVariableOp", "w", "scaled", outputs=[]),
        ],
    )
    phases = [op.phase for op in graph.operators]
    assert phases == ["forward", "backward", "optimizer", "optimizer"]


def test_a_graph_of_constants_is_refused() -> None:
    """It computes nothing."""
    with pytest.raises(UnsupportedError, match="computes nothing"):
        node_graph("g", [node("c", "Const")])


def test_products_are_counted_as_loops_do() -> None:
    """Two operations for every term that a product adds up."""
    assert work_of_node("MatMul", [(3, 4), (4, 5)], [(3, 5)], {}) == Work(2 * 3 * 4 * 5)
    assert (
        work_of_node("MatMul", [(4, 3), (4, 5)], [(3, 5)], {"transpose_a": True})[0]
        == 2 * 3 * 4 * 5
    )
    shapes = [(2, 3, 4), (2, 4, 5)]
    assert work_of_node("BatchMatMulV2", shapes, [(2, 3, 5)], {})[0] == 2 * 2 * 3 * 4 * 5
    assert work_of_node("Einsum", shapes, [(2, 3, 5)], {"equation": "bij,bjk->bik"})[0] == 2 * 120
    assert (
        work_of_node("Einsum", shapes, [(2, 3, 5)], {"equation": "...ij,...jk->...ik"})[0]
        == 2 * 120
    )


@pytest.mark.parametrize("size", [(5, 3), (4, 2)])
def test_convolutions_and_their_gradients_do_the_same_products(size: tuple[int, int]) -> None:
    """Valid padding: every output adds a window over all input channels."""
    side, window = size
    out = side - window + 1
    terms = sum(1 for _ in product(range(out), range(out), range(window), range(window)))
    x, w, y = (2, side, side, 3), (window, window, 3, 7), (2, out, out, 7)
    expected = 2.0 * 2 * 3 * 7 * terms
    assert work_of_node("Conv2D", [x, w], [y], {}) == Work(expected)
    assert work_of_node("Conv2DBackpropInput", [(4,), w, y], [x], {}) == Work(expected)
    assert work_of_node("Conv2DBackpropFilter", [x, (4,), y], [w], {}) == Work(expected)
    deep = (window, window, 3, 1)
    y = (2, out, out, 3)
    assert work_of_node("DepthwiseConv2dNative", [x, deep], [y], {}).flops == 2.0 * 2 * 3 * terms


def test_other_operators_work_per_element_or_not_at_all() -> None:
    """Reductions read their input once, pools every window, views nothing."""
    assert work_of_node("Sum", [(6, 7), (1,)], [(6,)], {}) == Work(0, 42)
    assert work_of_node("MaxPool", [(1, 4, 4, 2)], [(1, 2, 2, 2)], {"ksize": [1, 2, 2, 1]}) == Work(
        0, 32
    )
    assert work_of_node("Reshape", [(6, 7), (1,)], [(42,)], {}) == Work(0, 0)
    assert work_of_node("NoOp", [], [], {}) == Work(0, 0)
