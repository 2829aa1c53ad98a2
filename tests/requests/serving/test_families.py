"""Families of ONNX models that are not served, and those that come as bytes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from placewright.errors import InputError
from placewright.requests.serving.families import Variant, make_family
from placewright.requests.serving.server import ServingOptions, serve

WEIGHT = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")


def model_of(
    nodes: list[Any],
    *,
    rows: Any = "n",
    columns: Any = 8,
    inside: list[Any] | None = None,
    **outputs: Any,
) -> bytes:
    """An ONNX file of these nodes, from ``x`` of 8 numbers a row."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, columns])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [WEIGHT] if inside is None else inside,
    )
    opset = [helper.make_opsetid("", 21)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    return data


PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"])


def started(model: bytes, most_batch: int = 16) -> str:
    """Why a server of it does not start; or empty."""
    try:
        family = make_family("m", [Variant("v", 0.9, model)])
        options = ServingOptions(port=0, most_batch=most_batch)
        with serve([family], {"a": 1.0}, options):
            return ""
    except InputError as error:
        return str(error)


def external(location: str) -> TensorProto:
    """A weight of 8 x 4 numbers in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "128")):
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.mark.parametrize("place", ["initializer", "attribute", "branch", "function"])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_model_that_came_as_bytes_reads_no_file(
    place: str, absolute: bool, tmp_path: Path
) -> None:
    """A client could have the server read its own files, and ask for what is in them."""
    (tmp_path / "secret").write_bytes(bytes(128))
    tensor = external(str(tmp_path / "secret") if absolute else "secret")
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    if place == "initializer":
        model = model_of([PRODUCT], inside=[tensor], y=["n", 4])
    elif place == "attribute":
        model = model_of([constant, PRODUCT], inside=[], y=["n", 4])
    elif place == "branch":
        info = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])]
        branch = helper.make_graph([PRODUCT], "b", [], info, [tensor])
        yes = helper.make_node("Constant", [], ["c"], value_int=1)
        cast = helper.make_node("Cast", ["c"], ["b"], to=TensorProto.BOOL)
        chosen = helper.make_node("If", ["b"], ["y"], then_branch=branch, else_branch=branch)
        model = model_of([yes, cast, chosen], inside=[], y=["n", 4])
    else:
        opset = [helper.make_opsetid("", 21)]
        function = helper.make_function("own", "F", ["x"], ["y"], [constant, PRODUCT], opset)
        call = helper.make_node("F", ["x"], ["y"], domain="own")
        loaded = onnx.ModelProto.FromString(model_of([call], inside=[], y=["n", 4]))
        loaded.functions.append(function)
        loaded.opset_import.append(helper.make_opsetid("own", 1))
        model = loaded.SerializeToString()
    with contextlib.chdir(tmp_path), pytest.raises(InputError, match="is in another file"):
        make_family("m", [Variant("v", 0.9, model)])


def test_outputs_without_a_row_for_each_sample_are_not_served() -> None:
    """They would be cut, and most clients get nothing, or what belongs to another."""
    axes = numpy_helper.from_array(np.array([0]), "axes")
    total = helper.make_node("ReduceSum", ["y", "axes"], ["total"])
    model = model_of([PRODUCT, total], inside=[WEIGHT, axes], y=["n", 4], total=["m", 4])
    assert "output 'total' of a batch of" in started(model)
    assert started(model, most_batch=1) == ""


def test_rows_that_change_each_others_outputs_are_not_served() -> None:
    """Their answers would depend on how many other clients there are."""
    softmax = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    assert "depends on the other rows" in started(model_of([softmax], inside=[], y=["n", 8]))
    assert started(model_of([softmax], inside=[], y=["n", 8]), most_batch=1) == ""


def test_two_families_of_one_name_are_not_served() -> None:
    """Clients would reach one of them only, and a load would read one file."""
    families = [
        make_family("m", [Variant(name, 0.9, model_of([PRODUCT], y=["n", 4]), version=version)])
        for name, version in (("u", 1), ("v", 2))
    ]
    with (
        pytest.raises(InputError, match=r"two families have the same name.*'m'"),
        serve(families, {"a": 1.0}, ServingOptions(port=0)),
    ):
        pass
