"""Program: how to execute the operators of a Graph, as plain data.

An instruction calls one operation on values. Values are program inputs (parameters, buffers,
optimizer state, model inputs) and instruction results. Every tensor of the Graph is a value of
the same name; tensors of zero bytes whose name starts with ``after:`` carry no value, only an
order (an in-place update runs after every reader of what it updates).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from placewright.graph.graph import TensorSpec

Role = Literal["parameter", "buffer", "state", "input", "target", "setting", "constant"]

ORDER_ONLY = "after:"
"""Prefix of tensors that carry an order and no value."""

SCRATCH = "scratch:"
"""Prefix of tensors that nobody reads: memory that an operator holds while it runs."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value used as an argument."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """A framework constant: kind ``dtype``, ``device``, ``layout`` or ``memory_format``."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """One call.

    Attributes
    ----------
    name
        The operator's name in the Graph.
    target
        The operation, for example ``aten.convolution.default``.
    args, kwargs
        Numbers, strings, booleans, ``None``, `Ref`, `Const`, and lists of these.
    results
        One value name per output, ``""`` for an output that is ``None`` or never used;
        a single output has the operator's name, output k of several is ``name.k``.
    mutates
        Program inputs that the call changes in place.
    random
        Whether it draws from the global random-number generator.
    """

    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str, ...]
    mutates: tuple[str, ...] = ()
    random: bool = False


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """A value that exists before the first instruction.

    Attributes
    ----------
    role
        Parameters, buffers and state live where the operators of `colocation` run;
        inputs, targets, settings (numbers that are fed with every batch, such as the learning
        rate) and constants are present on every device.
    key
        Qualified name in the model (``layer1.0.conv1.weight``), state as
        ``layer1.0.conv1.weight/exp_avg``, inputs by position.
    """

    name: str
    role: Role
    key: str
    spec: TensorSpec
    colocation: str = ""
    mutated: bool = False


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """A value that the caller wants: ``loss`` or ``output`` or ``output.0`` ..."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Instructions in a valid order, one per operator of the Graph and in the same order.

    `optimizer`: ``{"name": "adam", "lr": 0.001, ...}``; empty for inference.
    `constants`: Base64 of the raw row-major bytes of every input whose role is ``constant``.
    `source`: The file that it was read from, empty for one that this process captured. A file's
    may only call operators without effects (`placewright.capturing.program_calls`).
    `settings`: of the process, which operators read when they run, as far as a fresh process has
    others: ``{"default_dtype": "float64"}``.
    """

    inputs: tuple[ProgramInput, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[ProgramOutput, ...]
    training: bool = False
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    settings: Mapping[str, str | bool | int] = field(default_factory=dict)

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return any(call.random for call in self.instructions)

    @property
    def keeps_state(self) -> bool:
        """Whether a run depends on those before it: on buffers, weights or random numbers."""
        changed = any(item.mutated for item in self.inputs)
        return changed or self.draws
