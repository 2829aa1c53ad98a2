"""Graphs as JSON (``.json`` or ``.json.gz``), with their programs and module trees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from placewright.errors import InputError, UnknownNameError
from placewright.graph.graph import INPUT_MARK, NO_DTYPE, Graph, Operator, Tensor, TensorSpec
from placewright.graph.modules import Module, ModuleTensor, ModuleTree
from placewright.graph.program import ORDER_ONLY, SCRATCH, Instruction, Program, Ref
from placewright.graph.program_files import ProgramEntry, SpecEntry, program_json, spec_json
from placewright.io.arguments import checked
from placewright.io.boundary import FileModel, parse_json, placed, validate
from placewright.io.stored import stored_text, write_file

SCHEMA_VERSION = 1

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0)]
StoredBytes = Annotated[int, Field(ge=0, le=2**62)]


class OperatorEntry(FileModel):
    """One operator."""

    name: str
    kind: str
    flops: Amount = 0.0
    elementwise_flops: Amount = 0.0
    uncounted: bool = False
    bytes_accessed: Amount = 0.0
    resident_bytes: Bytes = 0
    phase: str = ""
    module: str = ""
    signature: str = ""
    colocation: str = ""
    outputs: tuple[SpecEntry, ...] = ()
    micro_batch: Bytes = 0
    from_weights: bool = False

    def operator(self) -> Operator:
        """As data."""
        plain = {key: getattr(self, key) for key in _PLAIN}
        return Operator(**plain, outputs=tuple(entry.spec() for entry in self.outputs))


_PLAIN = tuple(key for key in OperatorEntry.model_fields if key != "outputs")


class TensorEntry(FileModel):
    """One tensor."""

    name: str
    producer: str
    bytes: Bytes
    consumers: tuple[str, ...]
    view_of: str = ""


class ModuleTensorEntry(FileModel):
    """A parameter or buffer of a module."""

    name: str
    bytes: StoredBytes
    dtype: str = ""
    buffer: bool = False
    same_as: str = ""
    operator: str = ""


class ModuleEntry(FileModel):
    """A module."""

    path: str
    kind: str = ""
    tensors: tuple[ModuleTensorEntry, ...] = ()


class ModuleTreeEntry(FileModel):
    """A model's modules."""

    modules: tuple[ModuleEntry, ...]
    no_split: tuple[str, ...] = ()

    def tree(self) -> ModuleTree:
        """As data."""
        modules = (
            Module(m.path, m.kind, tuple(ModuleTensor(**t.model_dump()) for t in m.tensors))
            for m in self.modules
        )
        return ModuleTree(tuple(modules), self.no_split)


class GraphFile(FileModel):
    """A graph file."""

    schema_version: Literal[1] = 1
    name: str = ""
    operators: tuple[OperatorEntry, ...]
    tensors: tuple[TensorEntry, ...] = ()
    program: ProgramEntry | None = None
    modules: ModuleTreeEntry | None = None


def write_graph(graph: Graph, path: str | Path) -> Path:
    """Write a graph file that `read_graph` reads back equal; compressed if it ends in ``.gz``."""
    return write_file(path, json.dumps(graph_json(graph), allow_nan=False) + "\n")


@checked
def read_graph(path: str | Path) -> Graph:
    """Read a graph file; an `InputError` names the file and the field."""
    where = str(path)
    return graph_from_json(parse_json(stored_text(path), where=where), where=where)


def graph_from_json(data: Any, *, where: str) -> Graph:
    """A graph from the data of its file; `where` is named in errors."""
    entry = validate(GraphFile, data, where=where)
    try:
        return _graph(entry, where)
    except InputError as error:
        raise placed(error, where) from None


def graph_json(graph: Graph) -> dict[str, Any]:
    """A graph as the data of its file."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": graph.name,
        "operators": [_operator_json(op) for op in graph.operators],
        "tensors": [_tensor_json(tensor) for tensor in graph.tensors],
        "program": None if graph.program is None else program_json(graph.program),
        **({} if graph.modules is None else {"modules": tree_json(graph.modules)}),
    }


def _graph(entry: GraphFile, where: str) -> Graph:
    graph = Graph(
        entry.name or Path(where).name.partition(".")[0],
        tuple(op.operator() for op in entry.operators),
        tuple(Tensor(t.name, t.producer, t.bytes, t.consumers, t.view_of) for t in entry.tensors),
        None if entry.program is None else entry.program.program(where),
        None if entry.modules is None else entry.modules.tree(),
    )
    if graph.program is not None:
        check_program(graph)
    return graph


def _operator_json(operator: Operator) -> dict[str, Any]:
    data = {key: getattr(operator, key) for key in _PLAIN}
    kept = {key: value for key, value in data.items() if value or key in ("name", "kind")}
    return kept | {"outputs": [spec_json(spec) for spec in operator.outputs]}


def _tensor_json(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "producer": tensor.producer,
        "bytes": tensor.bytes,
        "consumers": list(tensor.consumers),
        **({"view_of": tensor.view_of} if tensor.view_of else {}),
    }


def tree_json(tree: ModuleTree) -> dict[str, Any]:
    """A module tree as JSON data; empty fields are left out."""
    return {
        "no_split": list(tree.no_split),
        "modules": [
            {"path": m.path, "kind": m.kind, "tensors": [_module_tensor_json(t) for t in m.tensors]}
            for m in tree.modules
        ],
    }


def _module_tensor_json(tensor: ModuleTensor) -> dict[str, Any]:
    data = {key: getattr(tensor, key) for key in ModuleTensorEntry.model_fields}
    return {key: value for key, value in data.items() if value or key in ("name", "bytes")}


def check_program(graph: Graph) -> None:
    """Raise `InputError` where the graph's program contradicts itself or the graph.

    That is an instruction without its operator, or with more or fewer results than that has
    outputs; a value without a dtype, used before it is made or made twice; a tensor of the
    graph that is no value of the program, or is listed twice.
    """
    program: Program = graph.program
    where = f"{graph.name}: program"
    names = tuple(call.name for call in program.instructions)
    if names != graph.operator_names:
        raise InputError(
            "its instructions must be the graph's operators in the same order",
            where=where,
            by=f"{len(names)} instructions, {len(graph.operators)} operators",
        )
    for operator, call in zip(graph.operators, program.instructions, strict=True):
        _check_outputs(operator, call, f"{where}: instruction {call.name!r}")
    known = _values(program, where)
    inputs = [entry.name for entry in program.inputs]
    listed: set[str] = set()
    for tensor in graph.tensors:
        if tensor.name in listed:  # workers send values by name
            raise InputError(f"{tensor.name!r} is listed twice", where=f"{graph.name}: tensors")
        listed.add(tensor.name)
        if INPUT_MARK in tensor.view_of and tensor.view_of not in inputs:
            raise UnknownNameError("input", tensor.view_of, inputs, where=f"{graph.name}: view_of")
        if not tensor.name.startswith((ORDER_ONLY, SCRATCH)) and tensor.name not in known:
            raise UnknownNameError("value", tensor.name, known, where=f"{graph.name}: tensors")


def _check_outputs(operator: Operator, call: Instruction, where: str) -> None:
    if len(call.results) != len(operator.outputs):
        raise InputError(
            "its results must be the outputs of its operator, one each",
            where=where,
            by=f"{len(call.results)} results, {len(operator.outputs)} outputs",
            hint='name a result that is None or that nobody reads ""',
        )
    for name, spec in zip(call.results, operator.outputs, strict=True):
        if name:
            _check_dtype(name, spec, where)


def _check_dtype(name: str, spec: TensorSpec, where: str) -> None:
    if spec.dtype == NO_DTYPE:
        raise InputError(f"the value {name!r} has no dtype", where=where)


def _values(program: Program, where: str) -> set[str]:
    """Names of all values, after a walk from top to bottom."""
    known: set[str] = set()
    for entry in program.inputs:
        _check_dtype(entry.name, entry.spec, f"{where}: inputs")
        _make(known, entry.name, f"{where}: inputs")
    for call in program.instructions:
        place = f"{where}: instruction {call.name!r}"
        for name in (*_refs((call.args, tuple(call.kwargs.values()))), *call.mutates):
            if name not in known:
                raise UnknownNameError("value", name, known, where=place)
        for name in filter(None, call.results):
            _make(known, name, place)
    for output in program.outputs:
        if output.value not in known:
            raise UnknownNameError("value", output.value, known, where=f"{where}: outputs")
    return known


def _make(known: set[str], name: str, where: str) -> None:
    if name in known:
        raise InputError(f"the value {name!r} is made twice", where=where)
    known.add(name)


def _refs(argument: Any) -> Iterator[str]:
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple):
        for part in argument:
            yield from _refs(part)
