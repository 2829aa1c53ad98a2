"""Functions in model files are inlined only where the graph stays small."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from placewright.capturing.files.model_file import refuse_external_data
from placewright.capturing.files.onnx_graph import read_onnx
from placewright.capturing.files.openvino_graph import capture_openvino
from placewright.capturing.nested_functions import refuse_expansion_of_onnx
from placewright.errors import UnsupportedError

onnx = pytest.importorskip("onnx")
helper = onnx.helper if onnx else None


def nested(path: Path, levels: int, calls: int = 2, last: str = "") -> Path:
    """A model whose functions call each other so many levels deep, `calls` times at each."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = []
    for k in range(levels):
        kind, domain = (f"f{k - 1}", "own") if k else (last or "Relu", "own" if last else "")
        names = ["x", *(f"v{j}" for j in range(calls - 1)), "y"]
        nodes = [helper.make_node(kind, [a], [b], domain=domain) for a, b in pairwise(names)]
        functions.append(helper.make_function("own", f"f{k}", ["x"], ["y"], nodes, opsets))
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xy")
    node = helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="own")
    graph = helper.make_graph([node], "g", [x], [y])
    onnx.save(helper.make_model(graph, functions=functions, opset_imports=opsets), path)
    return path


@pytest.mark.parametrize("levels", [3, 30, 400])
def test_nested_functions_are_refused_where_they_grow_without_limit(
    tmp_path: Path, levels: int
) -> None:
    """Before they are inlined: a file of kilobytes has two to the thirtieth nodes."""
    path = nested(tmp_path / "x.onnx", levels)
    if levels == 3:
        assert len(read_onnx(path).graph.node) == 8
        return
    for read in (read_onnx, lambda path: capture_openvino(f"openvino:{path}")):
        with pytest.raises(UnsupportedError, match="too large when its functions are inlined"):
            read(path)
    with pytest.raises(UnsupportedError, match="too large when its functions are inlined"):
        refuse_external_data(path.read_bytes(), "upload")


def test_functions_that_call_themselves_are_refused(tmp_path: Path) -> None:
    """In a circle, too."""
    path = nested(tmp_path / "x.onnx", 3, last="f2")
    with pytest.raises(UnsupportedError, match="a function of the model calls itself"):
        read_onnx(path)


def test_calls_in_branches_count(tmp_path: Path) -> None:
    """They are inlined as well."""
    model = onnx.load(nested(tmp_path / "x.onnx", 30))
    (call,) = model.graph.node
    branch = helper.make_graph([call], "b", [], [model.graph.output[0]])
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    del model.graph.node[:]
    model.graph.node.append(node)
    with pytest.raises(UnsupportedError, match="too large"):
        refuse_expansion_of_onnx(model, "x")
