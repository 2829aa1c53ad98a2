"""Capture an OpenVINO model: IR, ONNX or PyTorch become a graph of operators and tensors."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from placewright.capturing.files.model_file import (
    SHARED_BYTES,
    InputSpec,
    ModelFile,
    beside,
    check_external_data,
    distinct_names,
    module_of,
    reader_groups,
    resident_bytes,
)
from placewright.capturing.flops import Shape, attention, einsum, recurrent, work_of_kind
from placewright.capturing.tensorflow.model import is_tensorflow
from placewright.errors import InputError, MissingDependencyError, UnsupportedError
from placewright.graph.graph import DTYPES, Graph, Operator, Tensor, TensorSpec
from placewright.io.boundary import named_path, open_file, unreadable

SCHEME = "openvino:"
"""Begins models that OpenVINO executes, whatever their format."""

CONTROL = ("If", "Loop", "TensorIterator")

ENDS = ("Parameter", "Constant", "Result")

COPIED = ("f32", "f16", "f64", "i8", "i16", "i32", "i64", "u8", "boolean")


def capture_openvino(source: str, batch: int | None = None) -> ModelFile:
    """Capture a model that OpenVINO executes.

    Operators keep their friendly names and come in the order of ``get_ordered_ops()``. Constants,
    and operators that depend on constants alone, follow what reads them.

    Raises `InputError`: the file is missing or damaged, or the model cannot be converted.
    Raises `UnsupportedError`: dynamic shapes, control flow, or variables that live from one
    inference to the next.
    Raises `MissingDependencyError`: OpenVINO is not installed.

    Parameters
    ----------
    source
        ``ir.xml``, ``openvino:model.onnx``, or ``openvino:`` and a PyTorch model
        (``openvino:zoo:resnet50``, ``openvino:package.module:factory``).
    batch
        Takes the place of a first dimension that the file leaves open; samples of a PyTorch model.
    """
    if importlib.util.find_spec("openvino") is None:
        raise MissingDependencyError("openvino", extra="openvino", purpose=f"reading {source}")
    rest = source.removeprefix(SCHEME)
    if Path(rest).suffix in (".xml", ".onnx"):
        try:
            return graph_of(_read(Path(rest)), source, Path(rest).stem, batch)
        except UnicodeDecodeError as error:  # OpenVINO takes any bytes as a name
            raise InputError(
                "has a name or an attribute that is no text in UTF-8",
                where=source,
                by=str(error),
                hint="convert the model again",
            ) from None
    if is_tensorflow(rest):
        raise UnsupportedError(
            "OpenVINO takes IR, ONNX and PyTorch models here, not TensorFlow's",
            where=source,
            hint=f"give {rest} for TensorFlow, or the IR that openvino.convert_model makes of it",
        )
    from placewright.capturing.source import load_model

    made = load_model(rest, batch)
    return graph_of(_converted(made, source), source, made.name, None)


def _read(path: Path) -> Any:
    import openvino as ov

    if not named_path(path).exists():
        raise InputError("no such file", where=str(path), hint="give the path of ir.xml")
    if path.suffix == ".onnx":
        _check_onnx(path)
    weights = path.with_suffix(".bin")
    if path.suffix == ".xml" and b"<net" not in _beginning(path):
        raise InputError(
            "is not a model that OpenVINO reads",
            where=str(path),
            by="no <net> in its first 4 KiB",
            hint="give the .xml that openvino.save_model wrote",
        )
    if path.suffix == ".xml" and not weights.is_file():
        raise InputError(
            "the file with its weights is missing",
            where=str(weights),
            hint="put the .bin file of the IR beside its .xml",
        )
    if path.suffix == ".xml" and beside(path, weights.name) is None:
        raise InputError(
            "the file with its weights is a link that leads outside the model's folder",
            where=str(weights),
            by=str(weights.resolve()),
            hint="put the .bin file itself beside its .xml",
        )
    try:
        return ov.Core().read_model(str(path))
    except RuntimeError as error:
        raise InputError(
            "is not a model that OpenVINO reads, or a damaged one",
            where=str(path),
            by=reason(error),
            hint="convert or download it again",
        ) from error


def _beginning(path: Path) -> bytes:
    """The first 4 KiB; OpenVINO opens the file after us, so it is to be a regular one."""
    try:
        with open_file(path) as file:
            return file.read(4096)
    except OSError as error:
        raise unreadable(path, error) from None


def _check_onnx(path: Path) -> None:
    """OpenVINO would read external data from wherever the file names it."""
    if importlib.util.find_spec("onnx") is None:
        raise MissingDependencyError("onnx", extra="openvino", purpose=f"checking {path}")
    from placewright.capturing.files.onnx_graph import parsed_onnx

    check_external_data(parsed_onnx(path), path)


def _converted(made: Any, source: str) -> Any:
    import openvino as ov
    import torch

    given = made.inputs if isinstance(made.inputs, dict | tuple | list) else (made.inputs,)
    values = list(given.values()) if isinstance(given, dict) else list(given)
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise UnsupportedError(
            "the inputs of the model are no tensors",
            where=source,
            hint="return a tuple or dict of tensors from the factory",
        )
    try:
        with torch.no_grad():
            model = ov.convert_model(
                made.model.eval(), example_input=given if isinstance(given, dict) else tuple(given)
            )
        model.reshape({port: list(v.shape) for port, v in zip(model.inputs, values, strict=True)})
    except Exception as error:
        raise InputError(
            "OpenVINO cannot convert the model",
            where=source,
            by=reason(error),
            hint="export it to ONNX and give openvino:model.onnx",
        ) from error
    return model


def graph_of(model: Any, source: str, name: str, batch: int | None = None) -> ModelFile:
    """Capture an ``openvino.Model``; see `capture_openvino`."""
    _fix_batch(model, batch, source)
    ordered = model.get_ordered_ops()
    _check(model, ordered, source)
    _name_nodes(ordered)
    _fold_shapes(ordered)
    _split_constants(model.get_ordered_ops())
    ordered = model.get_ordered_ops()
    constant = _constants(ordered)
    placed = [n for n in ordered if n.get_friendly_name() not in constant and not _is_end(n)]
    if not placed:
        raise UnsupportedError(
            "computes nothing: its outputs are constants or inputs",
            where=source,
            hint="give a model whose outputs depend on its inputs",
        )
    groups, resident = _groups(ordered, constant), _resident(placed, constant)
    operators = tuple(_operator(node, groups, resident) for node in placed)
    return ModelFile(
        runtime="openvino",
        source=source,
        graph=Graph(name, operators, tuple(_tensors(placed, {op.name for op in operators}))),
        model=model,
        inputs=tuple(_input(port) for port in model.inputs),
        outputs=tuple(f"output{k}" for k in range(len(model.outputs))),
        constants=frozenset(constant),
    )


def _is_end(node: Any) -> bool:
    return node.get_type_name() in ENDS


def _fix_batch(model: Any, batch: int | None, source: str) -> None:
    shapes = {}
    for port in model.inputs if batch is not None else ():
        shape = port.get_partial_shape()
        if shape.rank.is_dynamic or len(shape) == 0:
            continue
        if shape[0].is_static and shape[0].get_length() != batch:
            raise InputError(
                f"the input {port.get_any_name()!r} has a fixed batch",
                where=source,
                by=f"{shape[0].get_length()}, --batch {batch}",
                hint="leave --batch out, or convert the model with a dynamic batch",
            )
        shape[0] = batch
        shapes[port] = shape
    try:
        if shapes:
            model.reshape(shapes)
    except RuntimeError as error:
        raise InputError(
            f"the model does not take a batch of {batch}",
            where=source,
            by=reason(error),
            hint="leave --batch out, or convert the model with a dynamic batch",
        ) from error


def _check(model: Any, ordered: list[Any], source: str) -> None:
    """Raise for control flow, variables and dynamic shapes."""
    for node in ordered:
        kind, where = node.get_type_name(), f"{source}: {node.get_friendly_name()!r}"
        if kind in CONTROL:
            raise UnsupportedError(
                f"control flow cannot be placed: {kind} is an operator with a graph of its own",
                where=where,
                hint="convert the model with the branch or loop unrolled",
            )
        for port in node.outputs():
            if port.get_element_type().get_type_name() == "string":
                raise UnsupportedError(
                    f"makes strings ({kind}), which no device of HETERO takes",
                    where=where,
                    hint="leave text processing out of the model",
                )
            if port.get_partial_shape().is_dynamic:
                raise UnsupportedError(
                    f"has a dynamic shape ({kind})",
                    where=where,
                    by=str(port.get_partial_shape()),
                    hint="give --batch N, or reshape the model to static shapes first",
                )
    if model.get_sinks():
        raise UnsupportedError(
            "keeps variables from one inference to the next",
            where=f"{source}: {model.get_sinks()[0].get_friendly_name()!r}",
            hint="convert the model without state (a stateless export)",
        )


def _name_nodes(ordered: list[Any]) -> None:
    """Give nodes with a friendly name that another one has a name of their own."""
    names = distinct_names(node.get_friendly_name() for node in ordered)
    for node, name in zip(ordered, names, strict=True):
        if name != node.get_friendly_name():
            node.set_friendly_name(name)


def _constants(ordered: list[Any]) -> set[str]:
    found: set[str] = set()
    for node in ordered:
        sources = [v.get_node().get_friendly_name() for v in node.input_values()]
        folded = bool(sources) and all(name in found for name in sources)
        if node.get_type_name() == "Constant" or (folded and node.get_type_name() != "Result"):
            found.add(node.get_friendly_name())
    return found


def _fold_shapes(ordered: list[Any]) -> None:
    """Replace shapes, which are static, by constants.

    OpenVINO folds them anyway, and a subgraph of HETERO whose output has been folded does not run.
    """
    from openvino import opset13 as ops

    for node in ordered:
        if node.get_type_name() == "ShapeOf":
            shape = np.array(
                _shape(node.input_value(0)), node.get_output_element_type(0).to_dtype()
            )
            made = ops.constant(shape, name=node.get_friendly_name())
            node.output(0).replace(made.output(0))


def _split_constants(ordered: list[Any]) -> None:
    """Give each reader of a small constant a copy of its own: it may run on any device."""
    from openvino import opset13 as ops

    for node in filter(_can_be_copied, ordered):
        targets = sorted(
            node.output(0).get_target_inputs(),
            key=lambda t: (t.get_node().get_friendly_name(), t.get_index()),
        )
        for k, target in enumerate(targets[1:], 2):
            name = f"{node.get_friendly_name()}#reader{k}"
            copy = ops.constant(node.get_data(), name=name)
            target.replace_source_output(copy.output(0))


def _can_be_copied(node: Any) -> bool:
    """Whether it is a small constant of a type that numpy has, too."""
    if node.get_type_name() != "Constant" or _bytes(node.output(0)) >= SHARED_BYTES:
        return False
    return str(node.get_output_element_type(0).get_type_name()) in COPIED


def _readers(port: Any) -> list[str]:
    return [target.get_node().get_friendly_name() for target in port.get_target_inputs()]


def _groups(ordered: list[Any], constant: set[str]) -> dict[str, str]:
    """Operator -> group, for those that read one constant together that is not copied."""
    names = ((node, node.get_friendly_name()) for node in ordered)
    return reader_groups(
        (name, sorted({r for port in node.outputs() for r in _readers(port)} - constant))
        for node, name in names
        if name in constant and not _can_be_copied(node)
    )


def _shape(port: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in port.get_shape())


def _bytes(port: Any) -> int:
    return (prod(_shape(port)) * int(port.get_element_type().bitwidth) + 7) // 8


def _dtype(port: Any) -> str:
    name = str(port.get_element_type().get_type_name())
    long = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat", "boolean": "bool"}
    head = name.rstrip("0123456789")
    full = long.get(head, head) + name[len(head) :]
    return full if full in DTYPES else "uint8"


def _input(port: Any) -> InputSpec:
    name = port.get_any_name() if port.get_names() else port.get_node().get_friendly_name()
    kind = port.get_element_type()
    if kind.is_dynamic():
        raise UnsupportedError(
            "an input takes any type of numbers, so that nothing is known of what is computed",
            where=f"input {name!r:.100}",
            by=str(kind.get_type_name()),
            hint="convert the model with the types of its inputs",
        )
    return InputSpec(name, _shape(port), np.dtype(kind.to_dtype()))


def _resident(placed: list[Any], constant: set[str]) -> dict[str, int]:
    """Operator -> bytes of the constants that live with it; one that is not copied lives once."""
    read: dict[tuple[str, int], tuple[int, bool, list[str]]] = {}
    for node in placed:
        for value in node.input_values():
            source = value.get_node()
            port = source.get_friendly_name(), value.get_index()
            if port[0] in constant:
                _, _, readers = read.setdefault(
                    port, (_bytes(value), not _can_be_copied(source), [])
                )
                if node.get_friendly_name() not in readers:
                    readers.append(node.get_friendly_name())
    return resident_bytes(read.values())


def _operator(node: Any, groups: dict[str, str], resident: dict[str, int]) -> Operator:
    kind, name = node.get_type_name(), node.get_friendly_name()
    given = list(node.input_values())
    made = node.outputs()
    shapes = [_shape(value) for value in given]
    attributes = node.get_attributes()
    results = [_shape(port) for port in made]
    product = PRODUCTS.get(kind)
    work = work_of_kind(
        f"{kind}{attributes.get('mode', '')}" if kind == "Interpolate" else kind,
        shapes,
        results,
        product=product and partial(product, attributes, shapes, results[0]),
        window=prod(attributes.get("kernel", ())),
    )
    return Operator(
        name=name,
        kind=f"openvino.{kind}",
        flops=work.flops,
        elementwise_flops=work.elementwise_flops,
        uncounted=work.uncounted,
        bytes_accessed=float(sum(map(_bytes, [*given, *made]))),
        resident_bytes=resident.get(name, 0),
        phase="forward",
        module=module_of(name),
        signature=f"{kind} {shapes} {json.dumps(attributes, default=str, sort_keys=True)}",
        colocation=groups.get(name, ""),
        outputs=tuple(TensorSpec(_shape(port), _dtype(port)) for port in made),
    )


def _matrices(attributes: Mapping[str, Any], given: Sequence[Shape], made: Shape) -> float:
    turned = attributes.get("transpose_a") and len(given[0]) > 1
    return 2.0 * prod(made) * given[0][-2 if turned else -1]


def _convolution(attributes: Mapping[str, Any], given: Sequence[Shape], made: Shape) -> float:
    """A product with a filter for every element of the result."""
    return 2.0 * prod(made) * prod(given[1][1:])


def _grouped(attributes: Mapping[str, Any], given: Sequence[Shape], made: Shape) -> float:
    """The same, the filters of each group apart."""
    return 2.0 * prod(made) * prod(given[1][2:])


def _transposed(attributes: Mapping[str, Any], given: Sequence[Shape], made: Shape) -> float:
    """A product with a filter for every element of the input."""
    return 2.0 * prod(given[0]) * prod(given[1][1:])


def _transposed_groups(attributes: Mapping[str, Any], given: Sequence[Shape], made: Shape) -> float:
    """The same, the filters of each group apart."""
    return 2.0 * prod(given[0]) * prod(given[1][2:])


def _recurrent(attributes: Mapping[str, Any], given: Sequence[Shape], made: Shape) -> float:
    """The steps come first; last W, R and B."""
    return recurrent(given[0], prod(given[-3]) + prod(given[-2]))


PRODUCTS: Mapping[str, Callable[[Mapping[str, Any], Sequence[Shape], Shape], float]] = {
    "MatMul": _matrices,
    "Convolution": _convolution,
    "GroupConvolution": _grouped,
    "ConvolutionBackpropData": _transposed,
    "GroupConvolutionBackpropData": _transposed_groups,
    "ScaledDotProductAttention": lambda attributes, given, made: attention(*given[:3]),
    **{
        f"{cell}{form}": _recurrent
        for cell in ("LSTM", "GRU", "RNN")
        for form in ("Cell", "Sequence")
    },
    "Einsum": lambda attributes, given, made: einsum(attributes["equation"], given),
}
"""FLOPs of operators that are products: attributes, shapes of inputs and of the first output."""


def _tensors(placed: list[Any], names: set[str]) -> list[Tensor]:
    found = []
    for node in placed:
        name = node.get_friendly_name()
        for k, port in enumerate(node.outputs()):
            readers = tuple(dict.fromkeys(r for r in _readers(port) if r in names))
            label = name if k == 0 else f"{name}.{k}"
            found.append(Tensor(label, name, _bytes(port), readers))
    return found


def reason(error: Exception) -> str:
    """The last lines of an exception of OpenVINO, without its source files."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("Exception from", "Check '"))]
    return " ".join(kept)[-300:] or type(error).__name__
