"""Graphs as JSON (``.json`` or ``.json.gz``), with their programs and module trees.

In a program's arguments a value is ``{"ref": "relu"}``, a constant of the framework
``{"dtype": "float32"}``, a number that JSON cannot write ``{"float": "inf"}`` or
``{"complex": "(1+2j)"}``; all else is itself, and tuples are lists.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from placewright.errors import InputError, UnknownNameError, check_known
from placewright.graph.graph import (
    DTYPES,
    INPUT_MARK,
    NO_DTYPE,
    ORDER_ONLY,
    SCRATCH,
    Const,
    Graph,
    Instruction,
    Module,
    ModuleTensor,
    ModuleTree,
    Operator,
    Program,
    ProgramInput,
    ProgramOutput,
    Ref,
    Role,
    Tensor,
    TensorSpec,
)
from placewright.io.arguments import checked
from placewright.io.boundary import FileModel, RefusedError, errors_in, parse_json, validate
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
    with errors_in(where):
        return _graph(entry, where)


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
        for name in (*call.reads(), *call.mutates):
            check_known("value", name, known, where=place)
        for name in filter(None, call.results):
            _make(known, name, place)
    for output in program.outputs:
        check_known("value", output.value, known, where=f"{where}: outputs")
    return known


def _make(known: set[str], name: str, where: str) -> None:
    if name in known:
        raise InputError(f"the value {name!r} is made twice", where=where)
    known.add(name)


CONSTANTS = ("dtype", "device", "layout", "memory_format")
_UNWRITABLE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}

MOST_NESTED = 32
"""Levels of lists in an argument; operations have two or three."""


def argument_json(argument: Any) -> Any:
    """An argument as JSON data."""
    if isinstance(argument, Ref):
        return {"ref": argument.name}
    if isinstance(argument, Const):
        return {argument.kind: argument.value}
    if isinstance(argument, tuple | list):
        return [argument_json(part) for part in argument]
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    if isinstance(argument, complex):
        return {"complex": str(argument)}
    return argument


def argument_from_json(data: Any, depth: int = 0) -> Any:
    """The argument that `argument_json` wrote.

    Raises `InputError`: an unknown mapping, or lists that are nested too deeply.
    """
    if isinstance(data, list | tuple):
        if depth == MOST_NESTED:
            raise InputError("has lists within lists", by=f"more than {MOST_NESTED} levels")
        return tuple(argument_from_json(part, depth + 1) for part in data)
    if not isinstance(data, dict):
        return data
    kind, value = next(iter(data.items())) if len(data) == 1 else ("", None)
    if kind == "ref" and isinstance(value, str):
        return Ref(value)
    if kind in CONSTANTS and isinstance(value, str):
        return Const(kind, value)
    if kind == "float" and isinstance(value, str) and value in _UNWRITABLE:
        return _UNWRITABLE[value]
    if kind == "complex" and isinstance(value, str):
        with suppress(ValueError):
            return complex(value)
    raise InputError(
        "is no argument",
        by=f"got {data!r}"[:80],
        hint=f'write {{"ref": NAME}}, {{"float": "inf"}} or one of {", ".join(CONSTANTS)}',
    )


def _known_dtype(name: str) -> str:
    if name not in DTYPES:
        raise RefusedError(UnknownNameError("dtype", name, DTYPES))
    return name


DType = Annotated[str, AfterValidator(_known_dtype), Field(json_schema_extra={"enum": [*DTYPES]})]


class SpecEntry(FileModel):
    """Shape, dtype and strides of one value."""

    shape: tuple[Annotated[int, Field(ge=0)], ...]
    dtype: DType
    stride: tuple[int, ...] = ()

    def spec(self) -> TensorSpec:
        """As data."""
        return TensorSpec(**dict(self))


def _argument(data: Any) -> Any:
    try:
        return argument_from_json(data)
    except InputError as error:
        raise RefusedError(error) from None


Argument = Annotated[Any, BeforeValidator(_argument)]


class InstructionEntry(FileModel):
    """One call."""

    name: str
    target: str
    args: tuple[Argument, ...] = ()
    kwargs: dict[str, Argument] = Field(default_factory=dict)
    results: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    random: bool = False

    def instruction(self) -> Instruction:
        """As data."""
        return Instruction(**dict(self))


class InputEntry(FileModel):
    """A value that exists before the first instruction."""

    name: str
    role: Role
    key: str
    spec: SpecEntry
    colocation: str = ""
    mutated: bool = False

    def input(self) -> ProgramInput:
        """As data."""
        return ProgramInput(**dict(self) | {"spec": self.spec.spec()})


class OutputEntry(FileModel):
    """A value that the caller wants."""

    name: str
    value: str


def _base64(data: object) -> object:
    try:
        base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(InputError("is not base64", by=str(error))) from None
    return data


class SettingsEntry(FileModel):
    """Settings of the process that operators read when they run; a fresh process has these."""

    default_dtype: Literal["float16", "bfloat16", "float32", "float64"] = "float32"
    float32_matmul_precision: Literal["highest", "high", "medium"] = "highest"
    mkldnn: bool = True
    deterministic: Annotated[int, Field(ge=0, le=2)] = 0


class ProgramEntry(FileModel):
    """A program."""

    inputs: tuple[InputEntry, ...]
    instructions: tuple[InstructionEntry, ...]
    outputs: tuple[OutputEntry, ...]
    training: bool = False
    optimizer: dict[str, str | float] = Field(default_factory=dict)
    constants: dict[str, Annotated[str, BeforeValidator(_base64)]] = Field(default_factory=dict)
    settings: SettingsEntry = Field(default_factory=SettingsEntry)

    def program(self, source: str) -> Program:
        """As data, read from the file `source`."""
        return Program(
            tuple(entry.input() for entry in self.inputs),
            tuple(entry.instruction() for entry in self.instructions),
            tuple(ProgramOutput(entry.name, entry.value) for entry in self.outputs),
            self.training,
            self.optimizer,
            self.constants,
            source,
            self.settings.model_dump(exclude_defaults=True),
        )


def program_json(program: Program) -> dict[str, Any]:
    """A program as JSON data."""
    return {
        "training": program.training,
        "optimizer": dict(program.optimizer),
        "inputs": [_input_json(entry) for entry in program.inputs],
        "instructions": [_instruction_json(call) for call in program.instructions],
        "outputs": [{"name": out.name, "value": out.value} for out in program.outputs],
        "constants": dict(program.constants),
        **_nonempty(settings=dict(program.settings)),
    }


def spec_json(spec: TensorSpec) -> dict[str, Any]:
    """A spec as JSON data."""
    return {"shape": list(spec.shape), "dtype": spec.dtype, "stride": list(spec.stride)}


def _input_json(entry: ProgramInput) -> dict[str, Any]:
    data: dict[str, Any] = {"name": entry.name, "role": entry.role, "key": entry.key}
    data["spec"] = spec_json(entry.spec)
    return data | _nonempty(colocation=entry.colocation, mutated=entry.mutated)


def _instruction_json(call: Instruction) -> dict[str, Any]:
    data: dict[str, Any] = {"name": call.name, "target": call.target}
    return data | _nonempty(
        args=argument_json(call.args),
        kwargs={key: argument_json(value) for key, value in call.kwargs.items()},
        results=list(call.results),
        mutates=list(call.mutates),
        random=call.random,
    )


def _nonempty(**fields: Any) -> dict[str, Any]:
    """The fields without the empty ones, which a file leaves out."""
    return {key: value for key, value in fields.items() if value}
