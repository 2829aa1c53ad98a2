"""Split an ONNX model into one sub-model for each stretch of operators on one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewright.capturing.files.model_file import ModelFile

EMBEDDED_BYTES = 1 << 30
"""Sub-models with more weights have them in a file beside: protocol buffers end at 2 GiB."""


@dataclass(frozen=True, slots=True)
class Part:
    """Operators that one device runs without waiting for another in between.

    Attributes
    ----------
    nodes
        In the order of the plan.
    inputs
        Values that come from elsewhere: inputs of the model, and what other parts make.
    outputs
        Values that other parts, on whatever device, or the model's user read; of the first part
        those that are constants, too.
    """

    device: int
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def parts_of(file: ModelFile, device: Mapping[str, int], order: Sequence[str]) -> list[Part]:
    """Parts in an order in which each finds its inputs made.

    A part ends before an operator that reads what another device has made since the part began,
    and after one that makes what another device reads: so parts wait for nothing but their inputs,
    and others do not wait for more than they read.
    """
    nodes = {node.name: node for node in file.model.graph.node}
    readers = _reader_devices(nodes.values(), file.constants, device)
    made_by: dict[str, int] = {}
    arrived: set[tuple[str, int]] = set()
    closed: list[tuple[int, list[str]]] = []
    current: dict[int, list[str]] = {}
    for name in order:
        d = device[name]
        foreign = {v for v in nodes[name].input if made_by.get(v, d) != d and (v, d) not in arrived}
        if foreign and current.get(d):
            closed.append((d, current.pop(d)))
        arrived |= {(value, d) for value in foreign}
        current.setdefault(d, []).append(name)
        made_by |= dict.fromkeys(filter(None, nodes[name].output), d)
        if any(readers.get(value, set()) - {d} for value in nodes[name].output):
            closed.append((d, current.pop(d)))
    closed += [(d, names) for d, names in current.items() if names]
    return _with_values(file, closed, nodes)


def _reader_devices(
    nodes: Iterable[Any], constants: frozenset[str], device: Mapping[str, int]
) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for node in nodes:
        if node.name not in constants:
            for value in node.input:
                found.setdefault(value, set()).add(device[node.name])
    return found


def _with_values(
    file: ModelFile, stretches: list[tuple[int, list[str]]], nodes: Mapping[str, Any]
) -> list[Part]:
    """What goes into and out of each stretch."""
    held = {tensor.name for tensor in file.model.graph.initializer}
    held |= {value for name in file.constants for value in nodes[name].output}
    part_of = {name: k for k, (_, names) in enumerate(stretches) for name in names}
    readers: dict[str, set[int]] = {}
    for name, k in part_of.items():
        for value in nodes[name].input:
            readers.setdefault(value, set()).add(k)
    wanted = set(file.outputs)
    parts = []
    for k, (d, names) in enumerate(stretches):
        made = [value for name in names for value in nodes[name].output if value]
        read = dict.fromkeys(value for name in names for value in nodes[name].input if value)
        outputs = [v for v in made if v in wanted or readers.get(v, set()) - {k}]
        outputs += [v for v in file.outputs if v in held and k == 0]
        inputs = [v for v in read if v not in held and v not in made]
        parts.append(Part(d, tuple(names), tuple(inputs), tuple(outputs)))
    return parts


def sub_model(file: ModelFile, part: Part) -> Any:
    """The part as a model of its own, with the weights and constants that it reads."""
    from onnx import helper

    graph = file.model.graph
    own = _with_constants(file, part)
    read = {value for node in own for value in node.input} | set(part.outputs)
    made = {value for node in own for value in node.output}
    types = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
    made_graph = helper.make_graph(
        own,
        f"{graph.name or 'model'}_part",
        [types[name] for name in part.inputs],
        [types[name] for name in part.outputs],
        initializer=[tensor for tensor in graph.initializer if tensor.name in read],
        value_info=[v for v in graph.value_info if v.name in made and v.name not in part.outputs],
    )
    return helper.make_model(
        made_graph,
        opset_imports=list(file.model.opset_import),
        ir_version=file.model.ir_version,
        producer_name="placewright",
    )


def _with_constants(file: ModelFile, part: Part) -> list[Any]:
    """Its nodes, and those that make the constants they read, in topological order."""
    graph = file.model.graph
    maker = {
        value: node for node in graph.node if node.name in file.constants for value in node.output
    }
    nodes = {node.name: node for node in graph.node}
    found: dict[str, Any] = {}

    def add(node: Any) -> None:
        if node.name in found:
            return
        for value in node.input:
            if value in maker:
                add(maker[value])
        found[node.name] = node

    for name in part.nodes:
        add(nodes[name])
    for value in part.outputs:
        if value in maker:
            add(maker[value])
    return list(found.values())


def write_sub_model(model: Any, path: Path) -> Path:
    """Write a sub-model; large weights go into ``<name>.weights`` beside it."""
    import onnx

    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save(
        model,
        str(path),
        save_as_external_data=size > EMBEDDED_BYTES,
        location=f"{path.stem}.weights" if size > EMBEDDED_BYTES else None,
    )
    return path
