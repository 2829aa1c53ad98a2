"""Programs as the data of a graph file.

In arguments a value is ``{"ref": "relu"}``, a constant of the framework ``{"dtype": "float32"}``, a
number that JSON cannot write ``{"float": "inf"}`` or ``{"complex": "(1+2j)"}``; all else is itself,
and tuples are lists.
"""

from __future__ import annotations

import base64
import binascii
import math
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from placewright.errors import InputError, UnknownNameError
from placewright.graph.graph import DTYPES, TensorSpec
from placewright.graph.program import (
    Const,
    Instruction,
    Program,
    ProgramInput,
    ProgramOutput,
    Ref,
    Role,
)
from placewright.io.boundary import FileModel, RefusedError

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
