"""The part of a graph file that says how to execute it."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from placewright.errors import InputError, UnknownNameError
from placewright.graph.arguments import argument_from_json, argument_json
from placewright.graph.dtypes import DTYPES
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, Program, ProgramInput, ProgramOutput, Role
from placewright.io.boundary import FileModel, RefusedError


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
        return TensorSpec(self.shape, self.dtype, self.stride)


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
        return Instruction(
            self.name,
            self.target,
            self.args,
            self.kwargs,
            self.results,
            self.mutates,
            self.random,
        )


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
        spec = self.spec.spec()
        return ProgramInput(self.name, self.role, self.key, spec, self.colocation, self.mutated)


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


class ProgramEntry(FileModel):
    """A program."""

    inputs: tuple[InputEntry, ...]
    instructions: tuple[InstructionEntry, ...]
    outputs: tuple[OutputEntry, ...]
    training: bool = False
    optimizer: dict[str, str | float] = Field(default_factory=dict)
    constants: dict[str, Annotated[str, BeforeValidator(_base64)]] = Field(default_factory=dict)

    def program(self) -> Program:
        """As data."""
        return Program(
            inputs=tuple(entry.input() for entry in self.inputs),
            instructions=tuple(entry.instruction() for entry in self.instructions),
            outputs=tuple(ProgramOutput(entry.name, entry.value) for entry in self.outputs),
            training=self.training,
            optimizer=self.optimizer,
            constants=self.constants,
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
    }


def spec_json(spec: TensorSpec) -> dict[str, Any]:
    """A spec as JSON data."""
    return {"shape": list(spec.shape), "dtype": spec.dtype, "stride": list(spec.stride)}


def _input_json(entry: ProgramInput) -> dict[str, Any]:
    data: dict[str, Any] = {"name": entry.name, "role": entry.role, "key": entry.key}
    data["spec"] = spec_json(entry.spec)
    return data | _given(colocation=entry.colocation, mutated=entry.mutated)


def _instruction_json(call: Instruction) -> dict[str, Any]:
    data: dict[str, Any] = {"name": call.name, "target": call.target}
    return data | _given(
        args=argument_json(call.args),
        kwargs={key: argument_json(value) for key, value in call.kwargs.items()},
        results=list(call.results),
        mutates=list(call.mutates),
        random=call.random,
    )


def _given(**fields: Any) -> dict[str, Any]:
    """Fields that say something; empty ones are left out of the file."""
    return {key: value for key, value in fields.items() if value}
