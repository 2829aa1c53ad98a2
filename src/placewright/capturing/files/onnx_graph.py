"""Capture an ONNX model: its nodes and values become a graph of operators and tensors."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from placewright.capturing.files.model_file import (
    SHARED_BYTES,
    InputSpec,
    ModelFile,
    check_external_data,
    check_text,
    distinct_names,
    module_of,
    reader_groups,
    resident_bytes,
)
from placewright.capturing.flops import attention, einsum, recurrent, work_of_kind
from placewright.capturing.nested_functions import refuse_expansion_of_onnx
from placewright.errors import InputError, MissingDependencyError, UnsupportedError
from placewright.graph.graph import DTYPES, Graph, Operator, Tensor, TensorSpec
from placewright.io.boundary import named_path, placed, read_bytes


def capture_onnx(path: Path, batch: int | None = None) -> ModelFile:
    """Capture the model in a file; see `read_onnx` for what is refused.

    Nodes are operators and keep their names. Initializers are resident where they are read: one
    that several operators read is held by each of them, or keeps them together where it is large,
    and is there once.
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


PACKED_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}
"""Bits of the types of which several elements are in a byte; NumPy gives each a byte."""


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
        read = {
            name: (self.weights[name], [r for r in readers if r not in self.constant_nodes])
            for name, readers in self.readers.items()
            if name in self.weights
        }
        self.group_of = reader_groups(
            (k, r) for k, (size, r) in read.items() if size >= SHARED_BYTES
        )
        self.resident = resident_bytes((size, size >= SHARED_BYTES, r) for size, r in read.values())

    def _fold(self, graph: Any) -> frozenset[str]:
        """Nodes that only read constants; what they make is a constant from then on.

        ONNX Runtime computes all but ``DequantizeLinear`` when it loads the model: a weight of few
        bits stays what it is.
        """
        found = set()
        for node in graph.node:
            if all(not name or name in self.weights for name in node.input):
                if _draws(node):  # a copy in every part would draw other numbers
                    continue
                found.add(node.name)
                kept = node.op_type == "DequantizeLinear"
                held = sum(self.weights[name] for name in node.input if name)
                for name in filter(None, node.output):
                    self.weights[name] = held if kept else self.size(name)
        return frozenset(found)

    def size(self, name: str) -> int:
        shape, dtype = self.types[name]
        return (prod(shape) * PACKED_BITS.get(dtype.name, 8 * dtype.itemsize) + 7) // 8

    def spec(self, name: str) -> TensorSpec:
        shape, dtype = self.types[name]
        return TensorSpec(shape, str(dtype) if str(dtype) in DTYPES else "uint8")

    def input_spec(self, value: Any) -> InputSpec:
        shape, dtype = self.types[value.name]
        return InputSpec(value.name, shape, dtype)


def _draws(node: Any) -> bool:
    """Whether a node draws random numbers: ``Dropout`` does where it may be told to train."""
    if node.op_type == "Dropout":
        return len(node.input) > 2
    return node.op_type in ("Bernoulli", "Multinomial") or node.op_type.startswith("Random")


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
    results = [values.types[name][0] for name in made]
    product = PRODUCTS.get(node.op_type)
    work = work_of_kind(
        _counted_as(node),
        shapes,
        results,
        product=product and partial(product, node, shapes, results[0] if results else ()),
        window=prod(_attribute(node, "kernel_shape", ())),
    )
    attributes = sorted(a.SerializeToString(deterministic=True).hex() for a in node.attribute)
    domain = f"{node.domain}." if node.domain else ""
    types = [values.types[name] for name in given]
    return Operator(
        name=node.name,
        kind=f"onnx.{domain}{node.op_type}",
        flops=work.flops,
        elementwise_flops=work.elementwise_flops,
        uncounted=work.uncounted,
        bytes_accessed=float(sum(map(values.size, {*given, *made}))),
        resident_bytes=values.resident.get(node.name, 0),
        phase="forward",
        module=_module_of(node),
        signature=f"{node.op_type.lower()} {types} {' '.join(attributes)}",
        colocation=values.group_of.get(node.name, ""),
        outputs=tuple(values.spec(name) for name in made),
    )


def _module_of(node: Any) -> str:
    """The module that called it: PyTorch's exporter says so in metadata, its older one by name."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":  # "['', 'layer1', 'layer1.0', 'conv2d']"
            scopes = re.findall("'([^']*)'", entry.value)
            return str(scopes[-2]) if len(scopes) > 1 else ""
    return module_of(node.name)


def _attribute(node: Any, name: str, default: Any) -> Any:
    from onnx.helper import get_attribute_value

    return next((get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _counted_as(node: Any) -> str:
    """The operator's type; with its mode, where elements are picked or interpolated by that."""
    if node.op_type not in ("Resize", "Upsample"):
        return str(node.op_type)
    mode = _attribute(node, "mode", b"nearest").decode()
    return f"{node.op_type}{mode}"


Shapes = Sequence[tuple[int, ...]]


def _matrices(node: Any, given: Shapes, made: tuple[int, ...]) -> float:
    turned = bool(_attribute(node, "transA", 0))
    return 2.0 * prod(made) * given[0][0 if turned else -1]


def _convolution(node: Any, given: Shapes, made: tuple[int, ...]) -> float:
    """A product with a filter for every element of the result."""
    return 2.0 * prod(made) * prod(given[1][1:])


def _quantised(node: Any, given: Shapes, made: tuple[int, ...]) -> float:
    """The same; scale and zero point of the input come before the filters."""
    return 2.0 * prod(made) * prod(given[3][1:])


def _transposed(node: Any, given: Shapes, made: tuple[int, ...]) -> float:
    """A product with a filter for every element of the input."""
    return 2.0 * prod(given[0]) * prod(given[1][1:])


def _recurrent(node: Any, given: Shapes, made: tuple[int, ...]) -> float:
    """X (steps, batch, width), W and R (directions, gates x hidden, ...)."""
    return recurrent(given[0], prod(given[1]) + prod(given[2]))


def _attention(node: Any, given: Shapes, made: tuple[int, ...]) -> float:
    """Queries, keys and values have an axis of heads, or heads side by side in the last."""
    query, key, value = given[:3]
    if len(query) == 3:
        heads, own = _attribute(node, "q_num_heads", 1), _attribute(node, "kv_num_heads", 1)
        query, key = (query[0], heads, query[1], query[2] // heads), (key[1], key[2] // own)
        value = (value[2] // own,)
    past = sum(map(bool, node.input[:4])) if any(node.input[4:5]) else None
    keys = key[-2] + (0 if past is None else given[past][-2])
    return attention(query, (keys, key[-1]), value)


def _einsum(node: Any, given: Shapes, made: tuple[int, ...]) -> float:
    return einsum(_attribute(node, "equation", b"").decode(), given)


PRODUCTS: Mapping[str, Callable[[Any, Shapes, tuple[int, ...]], float]] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "Gemm"), _matrices),
    **dict.fromkeys(("Conv", "ConvInteger"), _convolution),
    "QLinearConv": _quantised,
    "ConvTranspose": _transposed,
    "Attention": _attention,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Einsum": _einsum,
}
"""FLOPs of operators that are products, from a node, shapes of its inputs and its first output."""


def _tensors(placed: list[Any], values: _Values) -> list[Tensor]:
    """Values that flow between operators, and outputs that nothing reads."""
    names = {node.name for node in placed}
    found = []
    for node in placed:
        for name in filter(None, node.output):
            readers = tuple(r for r in values.readers.get(name, ()) if r in names)
            found.append(Tensor(name, node.name, values.size(name), readers))
    return found


CONTROL = "an operator with a graph of its own"


def read_onnx(path: Path, batch: int | None = None) -> Any:
    """The ``onnx.ModelProto`` with shapes of all values and unique node names.

    `batch`: takes the place of a first dimension that the file leaves open.

    Raises `InputError`: the file is missing or damaged, a file with its weights is missing or not
    in its folder, or it needs `batch`.
    Raises `UnsupportedError`: dynamic shapes, control flow, or a value whose shape cannot be
    inferred.
    Raises `MissingDependencyError`: the package ``onnx`` is not installed.
    """
    if importlib.util.find_spec("onnx") is None:
        raise MissingDependencyError("onnx", extra="onnx", purpose=f"reading {path}")
    import onnx

    model = parsed_onnx(path)
    check_external_data(model, path)
    if model.functions:
        import onnx.inliner

        try:
            model = onnx.inliner.inline_local_functions(model)
        except Exception as error:  # onnx's errors have no common base
            raise InputError(
                "its functions cannot be put in the place of their calls",
                where=str(path),
                by=_last_line(error),
                hint="export the model again; `onnx.checker.check_model` says more",
            ) from error
    _check_outputs(model.graph.node, path)
    _drop_unread(model.graph)
    _refuse_control_flow(model.graph.node, path)
    _name_nodes(model.graph)
    _fix_batch(model.graph, batch, path)
    _refuse_dynamic(model.graph, path)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=True
        )
    except Exception as error:  # InferenceError, and a ValueError for a type that is unknown
        raise InputError(
            "its shapes or types contradict each other",
            where=str(path),
            by=_last_line(error),
            hint="export the model again; `onnx.checker.check_model` says more",
        ) from error
    model = _with_static_outputs(inferred, path)
    _load_external(model, path)
    _constants_to_initializers(model.graph, path)
    _check_inputs(model.graph, path)
    return model


def parsed_onnx(path: Path) -> Any:
    """The ``onnx.ModelProto`` as it is in the file, without its external data.

    Raises `InputError`: the file is missing, cannot be read, or is no model.
    Raises `UnsupportedError`: its functions would make it too large.
    """
    import onnx
    from google.protobuf.message import DecodeError

    if not named_path(path).exists():
        raise InputError("no such file", where=str(path), hint="give the path of a .onnx file")
    data = read_bytes(path)
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise _damaged(path, data, str(error)) from error
    if not model.graph.node:
        raise _damaged(path, data, "it has no node")
    check_text(model, str(path))
    refuse_expansion_of_onnx(model, str(path))
    return model


def _damaged(path: Path, data: bytes, why: str) -> InputError:
    return InputError(
        "is not an ONNX model, or a damaged one",
        where=str(path),
        by=f"{len(data)} bytes: {why}",
        hint="export or download it again; git-lfs may have left a pointer file",
    )


def _load_external(model: Any, path: Path) -> None:
    """Take weights into the model; onnx has checks of its own, and refuses links."""
    from onnx.checker import ValidationError
    from onnx.external_data_helper import load_external_data_for_model

    try:
        load_external_data_for_model(model, str(path.parent))
    except (ValidationError, OSError, ValueError) as error:
        raise InputError(
            "a file with its weights cannot be read",
            where=str(path),
            by=_last_line(error),
            hint="put the file itself, no link to it, beside the model",
        ) from error


def _check_outputs(nodes: Iterable[Any], path: Path) -> None:
    """Raise on a node that makes nothing; others have a name by what they make."""
    for k, node in enumerate(nodes):
        if not node.op_type or not any(node.output):
            raise InputError(
                "a node without an operator or without outputs",
                where=f"{path}: node {k} {node.name!r}",
                hint="export the model again; `onnx.checker.check_model` says more",
            )


def _drop_unread(graph: Any) -> None:
    """Drop nodes that no output needs, as ONNX Runtime does."""
    wanted, kept = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(filter(None, node.output)):
            wanted.update(node.input)
            kept.append(node)
    _keep(graph, kept[::-1])


def _keep(graph: Any, nodes: list[Any]) -> None:
    """Leave the graph these of its nodes."""
    if len(nodes) < len(graph.node):
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _check_inputs(graph: Any, path: Path) -> None:
    """Raise on a node that reads what nothing makes."""
    values = (*graph.input, *graph.initializer)
    made = {value.name for value in values} | {name for n in graph.node for name in n.output}
    for node in graph.node:
        for name in node.input:
            if name and name not in made:
                raise InputError(
                    f"reads {name!r}, which nothing makes",
                    where=f"{path}: node {node.name!r}",
                    hint="export the model again, without sparse initializers",
                )


def _refuse_control_flow(nodes: Iterable[Any], path: Path) -> None:
    from onnx import AttributeProto

    for node in nodes:
        for attribute in node.attribute:
            if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                raise UnsupportedError(
                    f"control flow cannot be placed: {node.op_type} is {CONTROL}",
                    where=f"{path}: node {node.name or node.output[0]!r}",
                    hint="export the model with the branch or loop unrolled (a traced model)",
                )


def _name_nodes(graph: Any) -> None:
    """Give nodes without a name, or with another's, one of their own."""
    given = (node.name or f"{node.op_type}:{node.output[0]}" for node in graph.node)
    for node, name in zip(graph.node, distinct_names(given), strict=True):
        node.name = name


def _inputs(graph: Any) -> list[Any]:
    """Inputs that are no initializers (old files list those too)."""
    held = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in held]


def _fix_batch(graph: Any, batch: int | None, path: Path) -> None:
    """Set open first dimensions of inputs, and what has the same symbol, to `batch`."""
    if batch is None:
        return
    symbols = set()
    for value in _inputs(graph):
        dims = value.type.tensor_type.shape.dim
        if dims and not dims[0].HasField("dim_value"):
            symbols.add(dims[0].dim_param)
            dims[0].dim_value = batch
        elif dims and dims[0].dim_value != batch:
            raise InputError(
                f"the input {value.name!r} has a fixed batch",
                where=str(path),
                by=f"{dims[0].dim_value}, --batch {batch}",
                hint="leave --batch out, or export the model with a dynamic batch",
            )
    for value in (*_inputs(graph), *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and dim.dim_param in symbols:
                dim.dim_value = batch
    del graph.value_info[:]  # they may name the symbol


def _refuse_dynamic(graph: Any, path: Path) -> None:
    for value in _inputs(graph):
        if not value.type.HasField("tensor_type"):
            raise UnsupportedError(
                f"the input {value.name!r} is no tensor",
                where=str(path),
                hint="only models whose inputs are tensors can be placed",
            )
        tensor = value.type.tensor_type
        open_dims = [k for k, dim in enumerate(tensor.shape.dim) if not dim.HasField("dim_value")]
        if open_dims or not tensor.HasField("shape"):
            names = [tensor.shape.dim[k].dim_param or "?" for k in open_dims] or ["any rank"]
            batch_only = open_dims == [0]
            raise UnsupportedError(
                f"the input {value.name!r} has a dynamic shape",
                where=str(path),
                by=f"dimensions {', '.join(names)}",
                hint="give --batch N"
                if batch_only
                else "fix the sizes: onnxruntime.tools.make_dynamic_shape_fixed",
            )


def _with_static_outputs(model: Any, path: Path) -> Any:
    """The model, if the shapes of all outputs of all nodes are known."""
    graph = model.graph
    known = {v.name: v.type for v in (*graph.input, *graph.output, *graph.value_info)}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in known and _is_static(known[name].tensor_type):
                continue
            domain = f"{node.domain}." if node.domain else ""
            raise UnsupportedError(
                f"the shape of {name!r} is not known before the model runs",
                where=f"{path}: node {node.name!r} ({domain}{node.op_type})",
                by="dynamic shape, or an operator that ONNX does not define",
                hint="export with static shapes; the tool onnxruntime.tools.symbolic_shape_infer "
                "can add those of contributed operators",
            )
    return model


def _is_static(tensor: Any) -> bool:
    dims = tensor.shape.dim if tensor.HasField("shape") else None
    return dims is not None and all(dim.HasField("dim_value") for dim in dims)


def _constants_to_initializers(graph: Any, path: Path) -> None:
    """Constant nodes become initializers, which every part of the model copies."""
    from onnx import numpy_helper

    kept = []
    for node in graph.node:
        value = next((a for a in node.attribute if node.op_type == "Constant"), None)
        if value is None:
            kept.append(node)
        elif value.name == "sparse_value":
            raise UnsupportedError(
                "a sparse constant cannot be placed",
                where=f"{path}: node {node.name!r}",
                hint="export the model with dense constants",
            )
        elif value.name == "value":
            graph.initializer.add().CopyFrom(value.t)
            graph.initializer[-1].name = node.output[0]
        else:
            array = _constant_array(value)
            graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    _keep(graph, kept)


def _constant_array(value: Any) -> Any:
    import numpy as np
    import onnx

    held = onnx.helper.get_attribute_value(value)
    dtype = np.int64 if "int" in value.name else np.float32
    if "string" in value.name:
        return np.array(held, dtype=object)
    return np.array(held, dtype=dtype)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
