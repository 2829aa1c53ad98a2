"""Capture an ONNX model: its nodes and values become a graph of operators and tensors."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from placewright.capturing.files.formulas import flops
from placewright.capturing.files.model_file import (
    SHARED_BYTES,
    InputSpec,
    ModelFile,
    module_of,
    reader_groups,
)
from placewright.capturing.files.onnx_file import read_onnx
from placewright.errors import UnsupportedError
from placewright.graph.graph import DTYPES, Graph, Operator, Tensor, TensorSpec
from placewright.io.boundary import placed


def capture_onnx(path: Path, batch: int | None = None) -> ModelFile:
    """Capture the model in a file; see `read_onnx` for what is refused.

    Nodes are operators and keep their names. Initializers are resident where they are read: one
    that several operators read is held by each of them, or keeps them together where it is large.
    Nodes that depend on constants alone are part of every operator that reads what they make.
    """
    model = read_onnx(path, batch)
    try:
        graph = _Values(model)
    except UnsupportedError as error:
        raise placed(error, str(path)) from None
    nodes = [n for n in model.graph.node if n.name not in graph.constant_nodes]
    if not nodes:
        raise UnsupportedError(
            "computes nothing: its outputs are constants",
            where=str(path),
            hint="give a model whose outputs depend on its inputs",
        )
    operators = tuple(_operator(node, graph) for node in nodes)
    return ModelFile(
        runtime="onnxruntime",
        source=str(path),
        graph=Graph(path.stem, operators, tuple(_tensors(nodes, graph))),
        model=model,
        inputs=tuple(graph.input_spec(v) for v in model.graph.input if v.name in graph.inputs),
        outputs=tuple(v.name for v in model.graph.output),
        constants=graph.constant_nodes,
    )


class _Values:
    """Shapes, types and sizes of all values of a model, and which of them are constants."""

    def __init__(self, model: Any) -> None:
        graph = model.graph
        self.types: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor = value.type.tensor_type
            shape = tuple(dim.dim_value for dim in tensor.shape.dim)
            self.types[value.name] = shape, _dtype(tensor.elem_type, value.name)
        self.weights: dict[str, int] = {}
        for weight in graph.initializer:
            self.types[weight.name] = tuple(weight.dims), _dtype(weight.data_type, weight.name)
            self.weights[weight.name] = self.size(weight.name)
        self.inputs = {value.name for value in graph.input} - set(self.weights)
        self.constant_nodes = self._fold(graph)
        self.readers: dict[str, list[str]] = {}
        for node in graph.node:
            for name in dict.fromkeys(filter(None, node.input)):
                self.readers.setdefault(name, []).append(node.name)
        self.group_of = self._groups()

    def _fold(self, graph: Any) -> frozenset[str]:
        """Nodes that only read constants; what they make is a constant from then on."""
        found = set()
        for node in graph.node:
            if all(not name or name in self.weights for name in node.input):
                if node.op_type.startswith("Random") or node.op_type == "Multinomial":
                    continue
                found.add(node.name)
                for name in filter(None, node.output):
                    self.weights[name] = self.size(name)
        return frozenset(found)

    def _groups(self) -> dict[str, str]:
        """Node -> group, for those that read one large weight together."""
        return reader_groups(
            (name, [reader for reader in readers if reader not in self.constant_nodes])
            for name, readers in self.readers.items()
            if self.weights.get(name, 0) >= SHARED_BYTES
        )

    def size(self, name: str) -> int:
        shape, dtype = self.types[name]
        return prod(shape) * dtype.itemsize

    def spec(self, name: str) -> TensorSpec:
        shape, dtype = self.types[name]
        return TensorSpec(shape, str(dtype) if str(dtype) in DTYPES else "uint8")

    def input_spec(self, value: Any) -> InputSpec:
        shape, dtype = self.types[value.name]
        return InputSpec(value.name, shape, dtype)


def _dtype(elem_type: int, name: str) -> np.dtype[Any]:
    from onnx import helper

    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:
        raise UnsupportedError(
            "is no tensor of a known type",
            where=f"value {name!r}",
            by=f"type {elem_type} of ONNX",
            hint="export the model again; `onnx.checker.check_model` says more",
        ) from None


def _operator(node: Any, values: _Values) -> Operator:
    given = [name for name in node.input if name]
    made = [name for name in node.output if name]
    shapes = [values.types[name][0] for name in given]
    kind = node.op_type.lower()
    products, each, uncounted = flops(
        kind,
        shapes,
        [values.types[name][0] for name in made],
        inner=_inner(node, shapes),
        window=prod(next((a.ints for a in node.attribute if a.name == "kernel_shape"), ())),
    )
    attributes = sorted(a.SerializeToString(deterministic=True).hex() for a in node.attribute)
    domain = f"{node.domain}." if node.domain else ""
    return Operator(
        name=node.name,
        kind=f"onnx.{domain}{node.op_type}",
        flops=products,
        elementwise_flops=each,
        uncounted=uncounted,
        bytes_accessed=float(sum(map(values.size, {*given, *made}))),
        resident_bytes=sum(values.weights.get(name, 0) for name in set(given)),
        phase="forward",
        module=module_of(node.name),
        signature=f"{kind} {[values.types[n] for n in given]} {' '.join(attributes)}",
        colocation=values.group_of.get(node.name, ""),
        outputs=tuple(values.spec(name) for name in made),
    )


def _inner(node: Any, shapes: list[tuple[int, ...]]) -> int:
    """Length of the dimension that a matrix product adds over, 0 for other operators."""
    first = shapes[0] if shapes else ()  # one of another domain may have no matrix there
    if node.op_type in ("MatMul", "MatMulInteger") and first:
        return first[-1]
    if node.op_type == "Gemm" and len(first) == 2:
        turned = any(a.name == "transA" and a.i for a in node.attribute)
        return first[0 if turned else 1]
    return 0


def _tensors(placed: list[Any], values: _Values) -> list[Tensor]:
    """Values that flow between operators, and outputs that nothing reads."""
    names = {node.name for node in placed}
    found = []
    for node in placed:
        for name in filter(None, node.output):
            readers = tuple(r for r in values.readers.get(name, ()) if r in names)
            found.append(Tensor(name, node.name, values.size(name), readers))
    return found
