"""Lowered: a step as calls on named values, nothing of fx left; grouped and ordered later."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from placewright.graph.graph import (
    NO_DTYPE,
    Instruction,
    ProgramInput,
    ProgramOutput,
    Ref,
    TensorSpec,
)

RESIDENT = ("parameter", "buffer", "state")
"""Roles of inputs that outlive a step and live on one device."""

ABSENT = TensorSpec((0,), NO_DTYPE)
"""Stands for an output that is ``None``."""


@dataclass(frozen=True, slots=True)
class Call:
    """An instruction with the specs of its results, its origin and its FLOPs.

    Attributes
    ----------
    outputs
        One spec per name in ``instruction.results``, `ABSENT` for an output that is ``None``.
    micro_batch
        See `placewright.graph.graph.Operator`.
    flops, elementwise_flops, uncounted
        See `placewright.capturing.flops.Work`.
    """

    instruction: Instruction
    outputs: tuple[TensorSpec, ...]
    phase: str = ""
    module: str = ""
    flops: float = 0.0
    elementwise_flops: float = 0.0
    uncounted: bool = False
    micro_batch: int = 0

    def reads(self) -> Sequence[str]:
        """Names of the values that the call reads, each once, in order."""
        call = self.instruction
        return tuple(dict.fromkeys(_refs((call.args, tuple(call.kwargs.values())))))


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A step as calls in the order of eager mode.

    Attributes
    ----------
    gradients
        Key of a parameter -> name of its gradient.
    constants
        Name of a constant input -> base64 of its bytes.
    optimizer
        Name and settings of the optimizer; empty for inference.
    """

    inputs: tuple[ProgramInput, ...] = ()
    calls: tuple[Call, ...] = ()
    outputs: tuple[ProgramOutput, ...] = ()
    gradients: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)

    def extended(self, inputs: Sequence[ProgramInput], calls: Sequence[Call]) -> Lowered:
        """The same step with more inputs, and with `calls` at its end."""
        return replace(self, inputs=(*self.inputs, *inputs), calls=(*self.calls, *calls))

    def specs(self) -> dict[str, TensorSpec]:
        """Spec of every value: inputs and results."""
        specs = {entry.name: entry.spec for entry in self.inputs}
        for call in self.calls:
            named = zip(call.instruction.results, call.outputs, strict=True)
            specs.update((name, spec) for name, spec in named if name)
        return specs

    def mutated(self) -> set[str]:
        """Inputs that a call changes in place."""
        return {name for call in self.calls for name in call.instruction.mutates}

    def needed(self) -> Lowered:
        """The step without calls that no output needs, though they change buffers."""
        wanted = {output.value for output in self.outputs} | {*self.gradients.values()}
        kept: list[Call] = []
        for call in reversed(self.calls):
            if wanted.intersection(call.instruction.results):
                kept.append(call)
                wanted.update(call.reads())
        return replace(self, calls=tuple(reversed(kept)))

    def resident(self) -> list[ProgramInput]:
        """Inputs that live on one device: state, and whatever else is changed in place."""
        mutated = self.mutated()
        return [e for e in self.inputs if e.role in RESIDENT or e.name in mutated]


def input_name(role: str, key: str) -> str:
    """``parameter:conv1.weight``; the colon distinguishes it from operator names."""
    return f"{role}:{key}"


def spec_of(value: Tensor) -> TensorSpec:
    """Shape, dtype and strides of a tensor."""
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorSpec(tuple(value.shape), dtype, tuple(value.stride()))


def spec_bytes(spec: TensorSpec) -> int:
    """Bytes of the elements of one value."""
    if spec.dtype == NO_DTYPE:
        return 0
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return math.prod(spec.shape) * dtype.itemsize


def storage_bytes(spec: TensorSpec) -> int:
    """Bytes of memory that a value which is no view takes, gaps between elements included."""
    elements = spec_bytes(spec)
    if not elements or not spec.stride:
        return elements
    last = sum((n - 1) * step for n, step in zip(spec.shape, spec.stride, strict=True))
    return max(elements, (last + 1) * elements // math.prod(spec.shape))


def _refs(argument: Any) -> Iterator[str]:
    """Names of all values in nested arguments, in order, repeats included."""
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _refs(part)
