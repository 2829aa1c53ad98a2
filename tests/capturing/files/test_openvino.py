"""OpenVINO models: their graphs, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from onnx import helper
from openvino import opset13 as ops
from torch import Tensor, nn, ones

from placewright.capturing.files.onnx_graph import capture_onnx
from placewright.capturing.files.openvino_graph import capture_openvino, graph_of
from placewright.errors import InputError, MissingDependencyError, UnsupportedError
from tests.capturing.files.models import branching, save, weight


def make_mlp() -> tuple[nn.Module, tuple[Tensor]]:
    """A factory for ``openvino:``."""
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), (ones(3, 6),)


def ir(path: Path, model: Any) -> str:
    """Write a model as IR."""
    ov.save_model(model, str(path), compress_to_fp16=False)
    return str(path)


def test_ir_and_onnx_of_one_model_become_alike_graphs(tmp_path: Path) -> None:
    """IR and ONNX of one model become alike graphs."""
    path = branching(tmp_path / "cnn.onnx")
    read = ov.Core().read_model(str(path))
    from_ir = capture_openvino(ir(tmp_path / "cnn.xml", read)).graph
    from_onnx = capture_openvino(f"openvino:{path}").graph
    assert [op.kind for op in from_ir.operators] == [op.kind for op in from_onnx.operators]
    convolutions = [op for op in from_ir.operators if op.kind == "openvino.Convolution"]
    assert [op.flops for op in convolutions] == [2 * 512 * 27, 2 * 512 * 36, 2 * 512 * 36]
    assert sum(op.resident_bytes for op in convolutions) == 4 * (4 * 27 + 2 * 4 * 36)
    assert not any("Const" in op.kind or "Result" in op.kind for op in from_ir.operators)


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_count_as_in_onnx(tmp_path: Path, kind: str, gates: int) -> None:
    """Each step multiplies by every weight once."""
    weights = [weight("w", 1, gates * 3, 4), weight("r", 1, gates * 3, 3)]
    nodes = [helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=3)]
    path = save(tmp_path / "m.onnx", nodes, weights, {"x": [5, 2, 4]}, {"y": [5, 1, 2, 3]})
    wanted = 2 * (5 * 2) * gates * 3 * (4 + 3)
    for graph in (capture_onnx(path).graph, capture_openvino(f"openvino:{path}").graph):
        assert graph.flops == wanted
        assert not any(op.uncounted for op in graph.operators)


def test_a_pytorch_model_is_converted() -> None:
    """A PyTorch model is converted, modules included."""
    file = capture_openvino(f"openvino:{__name__}:make_mlp")
    kinds = [op.kind for op in file.graph.operators]
    assert kinds.count("openvino.MatMul") == 2
    assert file.inputs[0].shape == (3, 6)
    assert file.graph.flops == 2 * 3 * (6 * 4 + 4 * 2)


def test_shapes_and_shared_constants_tie_no_operators() -> None:
    """A shape is a constant, and each reader of a small constant has a copy."""
    x = ops.parameter([2, 3], np.float32, name="x")
    one = ops.constant(np.ones((1, 3), dtype=np.float32), name="one")
    a, b = ops.add(x, one, name="a"), ops.multiply(x, one, name="b")
    shape = ops.shape_of(a, name="shape")
    y = ops.add(ops.reshape(b, shape, False, name="r"), a, name="y")
    file = graph_of(ov.Model([ops.result(y, name="out")], [x], "m"), "m", "m")
    assert sorted(file.graph.operator_names) == ["a", "b", "r", "y"]
    assert {"one", "one#reader2", "shape"} <= file.constants
    tensors = {t.name: t.consumers for t in file.graph.tensors}
    assert tensors["a"] == ("y",)


def test_dynamic_shapes_are_fixed_or_refused(tmp_path: Path) -> None:
    """Dynamic shapes are fixed by a batch, or refused by name."""
    path = branching(tmp_path / "open.onnx", batch="N")
    with pytest.raises(UnsupportedError, match=r"dynamic shape[\s\S]*--batch N"):
        capture_openvino(f"openvino:{path}")
    file = capture_openvino(f"openvino:{path}", batch=3)
    assert file.inputs[0].shape == (3, 3, 8, 8)
    with pytest.raises(InputError, match="has a fixed batch"):
        capture_openvino(f"openvino:{branching(tmp_path / 'two.onnx')}", batch=3)


def test_control_flow_is_refused_by_name() -> None:
    """Control flow is refused by name."""
    x = ops.parameter([2], np.float32, name="x")
    inputs = [ops.parameter([2], np.float32) for _ in range(2)]
    made = [ops.result(ops.relu(each)) for each in inputs]
    choice = ops.if_op(ops.constant(np.array(True)))
    choice.set_friendly_name("choice")
    choice.set_then_body(ov.Model([made[0]], [inputs[0]], "then"))
    choice.set_else_body(ov.Model([made[1]], [inputs[1]], "else"))
    choice.set_input(x.output(0), *inputs)
    choice.set_output(*made)
    model = ov.Model([ops.result(choice.output(0))], [x], "m")
    with pytest.raises(UnsupportedError, match=r"m: 'choice': control flow .* If"):
        graph_of(model, "m", "m")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """Files that are missing, damaged or without weights are refused."""
    with pytest.raises(InputError, match="no such file"):
        capture_openvino(str(tmp_path / "absent.xml"))
    path = ir(tmp_path / "m.xml", ov.Core().read_model(str(branching(tmp_path / "m.onnx"))))
    (tmp_path / "m.bin").rename(tmp_path / "kept.bin")
    with pytest.raises(InputError, match=r"m\.bin: the file with its weights is missing"):
        capture_openvino(path)
    (tmp_path / "m.bin").write_bytes(b"short")
    with pytest.raises(InputError, match="damaged"):
        capture_openvino(path)
    Path(path).write_text("<net>")
    with pytest.raises(InputError, match="damaged"):
        capture_openvino(path)


def test_openvino_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO that is not installed is named, with its extra."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"'openvino'[\s\S]*placewright\[openvino\]"):
        capture_openvino("m.xml")


def test_strings_and_models_of_tensorflow_are_refused(tmp_path: Path) -> None:
    """OpenVINO crashes when it compiles strings; a GraphDef has an engine of its own."""
    text = ops.parameter([2], ov.Type.string)
    with pytest.raises(UnsupportedError, match="makes strings"):
        graph_of(ov.Model([text], [text]), "m", "m")
    with pytest.raises(UnsupportedError, match="not TensorFlow's"):
        capture_openvino(f"openvino:{tmp_path / 'graph.pb'}")


def test_inputs_of_any_type_are_refused() -> None:
    """NumPy has none for them, and OpenVINO an error of its own."""
    x = ops.parameter([2], ov.Type.dynamic, name="x")
    with pytest.raises(UnsupportedError, match=r"input 'x'.*any type of numbers"):
        graph_of(ov.Model([ops.result(ops.relu(x))], [x], "m"), "m", "m")


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, and half of a surrogate pair as a character reference."""
    x = ops.parameter([2, 3], np.float32, name="x")
    made = ov.Model([ops.result(ops.relu(x, name="NAME"))], [x], "m")
    path = Path(ir(tmp_path / "m.xml", made))
    right = path.read_bytes()
    for name in (b"\xa8", b"&#xD800;"):
        path.write_bytes(right.replace(b"NAME", name))
        with pytest.raises(InputError, match=r"m\.xml: has a name .* no text in UTF-8"):
            capture_openvino(str(path))
