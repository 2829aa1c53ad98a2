"""Draft: an instruction with what is known about it, before groups and order are settled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from placewright.graph.dtypes import NO_DTYPE
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, ProgramInput, ProgramOutput, Ref

RESIDENT = ("parameter", "buffer", "state")
"""Roles of inputs that outlive a step and live on one device."""

ABSENT = TensorSpec((0,), NO_DTYPE)
"""Stands for an output that is ``None``."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One call, aligned `outputs` and its annotations.

    Attributes
    ----------
    outputs
        One spec per name in ``call.results``, `ABSENT` for an output that is ``None``.
    flops, elementwise_flops, uncounted
        See `placewright.capturing.flops.Work`.
    """

    call: Instruction
    outputs: tuple[TensorSpec, ...]
    phase: str = ""
    module: str = ""
    flops: float = 0.0
    elementwise_flops: float = 0.0
    uncounted: bool = False


@dataclass(slots=True)
class Sketch:
    """A program in the making: grows while a graph is lowered and an optimizer appended."""

    inputs: list[ProgramInput] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    outputs: list[ProgramOutput] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)

    def add_input(self, value: ProgramInput) -> str:
        """Add a program input; its name."""
        self.inputs.append(value)
        self.specs[value.name] = value.spec
        return value.name

    def changed(self) -> set[str]:
        """Program inputs that a call changes in place."""
        return {name for draft in self.drafts for name in draft.call.mutates}

    def resident(self) -> list[ProgramInput]:
        """Program inputs that live on one device: state, and whatever else is changed."""
        changed = self.changed()
        return [e for e in self.inputs if e.role in RESIDENT or e.name in changed]

    def add(self, draft: Draft) -> str:
        """Add a call; the name of its only result, or of the call."""
        self.drafts.append(draft)
        for name, spec in zip(draft.call.results, draft.outputs, strict=True):
            if name:
                self.specs[name] = spec
        return draft.call.name


def input_name(role: str, key: str) -> str:
    """``parameter:conv1.weight``; the colon keeps it apart from operator names."""
    return f"{role}:{key}"


def spec_of(value: Tensor) -> TensorSpec:
    """Shape, dtype and strides of a tensor."""
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorSpec(tuple(value.shape), dtype, tuple(value.stride()))


def refs(arguments: Any) -> Iterator[str]:
    """Names of all values in nested arguments, in order, repeats included."""
    if isinstance(arguments, Ref):
        yield arguments.name
    elif isinstance(arguments, tuple | list):
        for argument in arguments:
            yield from refs(argument)
    elif isinstance(arguments, dict):
        yield from refs(tuple(arguments.values()))


def reads(draft: Draft) -> Sequence[str]:
    """Names of the values that a call is given, each once, in order."""
    call = draft.call
    return tuple(dict.fromkeys((*refs(call.args), *refs(tuple(call.kwargs.values())))))
