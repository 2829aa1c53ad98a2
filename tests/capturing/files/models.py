"""Small ONNX models, built node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def weight(name: str, *shape: int, seed: int = 0) -> Any:
    """Normal numbers as an initializer."""
    values = np.random.default_rng([seed, len(name)]).normal(size=shape) * 0.2
    return numpy_helper.from_array(values.astype(np.float32), name)


def save(
    path: Path,
    nodes: list[Any],
    weights: list[Any],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    **options: Any,
) -> Path:
    """Write a model of float tensors."""
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path), **options)
    return path


def branching(path: Path, batch: int | str = 2, **options: Any) -> Path:
    """A CNN with two branches, a constant that is computed, and nodes without names."""
    node = helper.make_node
    shape = numpy_helper.from_array(np.array([0, -1], dtype=np.int64))
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], name="/stem/conv", pads=[1] * 4),
        node("Relu", ["c0"], ["r0"], name="/stem/relu"),
        node("Conv", ["r0", "wa"], ["ca"], name="/a/conv", pads=[1] * 4),
        node("Conv", ["r0", "wb"], ["cb"], name="/b/conv", pads=[1] * 4),
        node("Sigmoid", ["ca"], ["sa"], name="/a/act"),
        node("Tanh", ["cb"], ["sb"], name="/b/act"),
        node("Concat", ["sa", "sb"], ["cat"], axis=1),
        node("GlobalAveragePool", ["cat"], ["gap"]),
        node("Constant", [], ["shape"], value=shape),
        node("Reshape", ["gap", "shape"], ["flat"]),
        node("Neg", ["wf"], ["minus"]),
        node("Gemm", ["flat", "minus", "bf"], ["y"], name="/head/gemm"),
    ]
    weights = [weight("w0", 4, 3, 3, 3), weight("wa", 4, 4, 3, 3), weight("wb", 4, 4, 3, 3)]
    weights += [weight("wf", 8, 5), weight("bf", 5)]
    return save(path, nodes, weights, {"x": [batch, 3, 8, 8]}, {"y": [batch, 5]}, **options)
