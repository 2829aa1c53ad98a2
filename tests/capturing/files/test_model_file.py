"""External data of models: beside the model, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from placewright.capturing.files.model_file import external_tensors, refuse_external_data
from placewright.capturing.files.onnx_graph import capture_onnx
from placewright.capturing.files.openvino_graph import capture_openvino
from placewright.errors import InputError
from tests.capturing.files.models import branching, save, weight

SECRET = "outside.bin"


def elsewhere(name: str, location: str, offset: str = "0") -> Any:
    """A tensor of four floats whose bytes are in another file."""
    made = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4])
    made.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": offset, "length": "16"}.items():
        made.external_data.add(key=key, value=value)
    return made


def hostile(folder: Path, tensor: Any, where: str) -> Path:
    """A model that has `tensor` as an initializer, a constant, in a function or sparse."""
    folder.mkdir()
    (folder.parent / SECRET).write_bytes(b"s" * 16)
    (folder / "linked.bin").symlink_to(folder.parent / SECRET)
    (folder / "loop.bin").symlink_to("loop.bin")
    node = helper.make_node
    constant = node("Constant", [], ["w"], value=tensor)
    add = node("Add", ["x", "w"], ["y"], name="sum")
    if where == "initializer":
        tensor.name = "w"
        return save(folder / "m.onnx", [add], [tensor], {"x": [4]}, {"y": [4]})
    if where == "constant":
        return save(folder / "m.onnx", [constant, add], [], {"x": [4]}, {"y": [4]})
    if where == "function":
        call = node("Own", ["x"], ["y"], domain="acme")
        path = save(folder / "m.onnx", [call], [], {"x": [4]}, {"y": [4]})
        model = onnx.load(str(path))
        opset = [helper.make_opsetid("", 17)]
        function = helper.make_function("acme", "Own", ["x"], ["y"], [constant, add], opset)
        model.functions.append(function)
    else:
        path = save(folder / "m.onnx", [add], [weight("w", 4)], {"x": [4]}, {"y": [4]})
        model = onnx.load(str(path))
        index = numpy_helper.from_array(np.arange(4), "index")
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, index, [4]))
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("where", ["initializer", "constant", "function", "sparse"])
@pytest.mark.parametrize("kind", ["above", "absolute", "link", "loop", "memory"])
def test_weights_outside_the_folder_are_refused_by_name(
    tmp_path: Path, where: str, kind: str
) -> None:
    """Wherever a tensor stands in the file, for both runtimes; nothing is read."""
    location = {
        "above": f"../{SECRET}",
        "absolute": str(tmp_path / SECRET),
        "link": "linked.bin",
        "loop": "loop.bin",
        "memory": "*/_ORT_MEM_ADDR_/*",
    }[kind]
    path = hostile(tmp_path / "model", elsewhere("stolen", location), where)
    name = "w" if where == "initializer" else "stolen"
    for capture, source in ((capture_onnx, path), (capture_openvino, f"openvino:{path}")):
        with pytest.raises(InputError, match=rf"m\.onnx: the weight '{name}' is in a file outside"):
            capture(source)  # type: ignore[operator]


@pytest.mark.parametrize("offset", ["-1", "many"])
def test_external_data_that_is_badly_described_is_refused(tmp_path: Path, offset: str) -> None:
    """An offset is a number from 0 on."""
    tensor = elsewhere("w", f"../{SECRET}", offset)
    with pytest.raises(InputError, match="external data that is not described"):
        capture_onnx(hostile(tmp_path / "model", tensor, "constant"))


def test_external_data_with_a_name_too_long_for_any_file_is_missing(tmp_path: Path) -> None:
    """As any other that is not there."""
    tensor = elsewhere("w", "x" * 300)
    with pytest.raises(InputError, match="the weight 'w' is missing or too short"):
        capture_onnx(hostile(tmp_path / "model", tensor, "constant"))


def test_a_model_that_arrives_as_bytes_has_its_weights_inside(tmp_path: Path) -> None:
    """Files that it names would be looked for on the receiver's disk."""
    inside = branching(tmp_path / "cnn.onnx").read_bytes()
    refuse_external_data(inside, "upload")
    with pytest.raises(InputError, match="upload: this is no ONNX model"):
        refuse_external_data(b"no model", "upload")
    for where in ("initializer", "constant", "function", "sparse"):
        path = hostile(tmp_path / where, elsewhere("stolen", "w.bin"), where)
        with pytest.raises(InputError, match=r"upload: .* is in another file.*w\.bin"):
            refuse_external_data(path.read_bytes(), "upload")


def test_every_tensor_of_a_model_is_looked_at(tmp_path: Path) -> None:
    """In the branches of control flow and in training graphs too."""
    tensor = elsewhere("t", "w.bin")
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    body = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("w", 1, [4])])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body)
    model = onnx.load(str(branching(tmp_path / "cnn.onnx")))
    model.graph.node.append(branch)
    model.training_info.add().algorithm.initializer.append(tensor)
    assert [found.name for found in external_tensors(model)] == ["t"] * 3


def test_weights_of_ir_behind_a_link_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    """A cache that links model and weights to one folder stays readable."""
    import openvino as ov

    folder, cache = tmp_path / "model", tmp_path / "cache"
    folder.mkdir()
    source = branching(tmp_path / "cnn.onnx")
    ov.save_model(ov.Core().read_model(str(source)), str(cache / "ir.xml"))
    (folder / "ir.bin").symlink_to(cache / "ir.bin")
    (folder / "ir.xml").write_bytes((cache / "ir.xml").read_bytes())
    with pytest.raises(InputError, match=r"ir\.bin: the file with its weights is a link"):
        capture_openvino(str(folder / "ir.xml"))
    (folder / "ir.xml").unlink()
    (folder / "ir.xml").symlink_to(cache / "ir.xml")
    assert capture_openvino(str(folder / "ir.xml")).graph.operators
