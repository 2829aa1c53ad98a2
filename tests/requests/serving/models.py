"""Small model families for tests, without training."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from placewright.requests.serving.families import Family, Variant, make_family


def scaled(factor: float, matmuls: int = 0, width: int | str = 4) -> bytes:
    """ONNX: y = factor * x for rows of so many numbers, after so many large products."""
    constants = [numpy_helper.from_array(np.array([factor], np.float32), "factor")]
    nodes = [helper.make_node("Mul", ["x", "factor"], ["v"])]
    last = "v"
    if matmuls:
        square = np.zeros((384, 384), np.float32)
        constants.append(numpy_helper.from_array(square, "square"))
        # A number that is not known before: of the batch's shape, as no row may feel another's NaN.
        nodes.append(helper.make_node("Shape", ["x"], ["s"]))
        nodes.append(helper.make_node("Cast", ["s"], ["c"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("ReduceMean", ["c"], ["m"], keepdims=0))
        nodes.append(helper.make_node("Add", ["square", "m"], ["p0"]))
        nodes += [
            helper.make_node("MatMul", [f"p{k}", "square"], [f"p{k + 1}"]) for k in range(matmuls)
        ]
        nodes.append(helper.make_node("ReduceMean", [f"p{matmuls}"], ["zero"], keepdims=0))
        nodes.append(helper.make_node("Add", ["v", "zero"], ["w"]))
        last = "w"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", width])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model.SerializeToString()


def family(name: str = "double", matmuls: tuple[int, int] = (0, 2)) -> Family:
    """Two variants that both double their input; the accurate one takes longer."""
    return make_family(
        name,
        [
            Variant("small", 0.7, scaled(2.0, matmuls[0])),
            Variant("large", 0.9, scaled(2.0, matmuls[1])),
        ],
    )
