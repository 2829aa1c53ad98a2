"""Stage 2, `lower`: a functional fx graph becomes `Lowered`, calls on named values.

Nothing of fx is left; calls are grouped and ordered later.
"""

from __future__ import annotations

import base64
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from placewright.capturing.call_flops import work
from placewright.capturing.checks import changed_in_place, sparse
from placewright.capturing.functional import REPEATED
from placewright.capturing.rewrites import is_random, without_source
from placewright.capturing.tracing import Traced
from placewright.errors import UnsupportedError
from placewright.graph.graph import (
    INPUT_MARK,
    NO_DTYPE,
    Const,
    Instruction,
    ProgramInput,
    ProgramOutput,
    Ref,
    Role,
    TensorSpec,
    input_name,
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
        return self.instruction.reads()


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


aten = torch.ops.aten

_IDENTITIES = (aten.detach.default, aten.alias.default, aten.lift_fresh.default)
"""Calls that return their argument: values never change, so an alias is the value."""

_LAZY = {
    aten._conj.default: "aten.conj_physical.default",
    aten._neg_view.default: "aten.neg.default",
}
"""Views of another value: a bit of the tensor says that it is to be conjugated or negated.

Values of a program have no such bits, which no message and no file keeps: they are computed.
"""

_MUTABLE_ROLES = (*RESIDENT, "input", "target")

_FRAMEWORK_CONSTANTS = {
    "dtype": torch.dtype,
    "device": torch.device,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def lower(traced: Traced) -> Lowered:
    """Lower every node; getitem becomes its producer's result, aliases disappear."""
    lowering = _Lowering(traced)
    for node in traced.module.graph.nodes:
        getattr(lowering, node.op)(node)
    return Lowered(
        tuple(lowering.inputs),
        tuple(lowering.calls),
        tuple(lowering.outputs),
        lowering.gradients,
        lowering.constants,
    )


class _Lowering:
    """One method per kind of fx node, named after it."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.step_inputs = iter(traced.inputs)
        self.names: dict[fx.Node, str] = {}
        self.inputs: list[ProgramInput] = []
        self.calls: list[Call] = []
        self.outputs: list[ProgramOutput] = []
        self.gradients: dict[str, str] = {}
        self.constants: dict[str, str] = {}

    def placeholder(self, node: fx.Node) -> None:
        given = next(self.step_inputs)
        self._input(node, given.role, given.key, given.value)

    def get_attr(self, node: fx.Node) -> None:
        key = str(node.target)
        name = self.names[node] = input_name("constant", key)
        if name in self.constants:  # every use of a tensor has a node of its own
            return
        value = getattr(self.traced.module, key)
        if not isinstance(value, Tensor):
            raise UnsupportedError(
                "control flow inside the graph (torch.cond, while_loop)",
                where=f"constant {key!r}",
                hint="only tensor operations can be placed; write it with torch.where",
            )
        self.constants[name] = _encoded(value, key)
        self._input(node, "constant", key, value.contiguous())

    def call_function(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            producer, position = node.args
            self.names[node] = f"{self.names[producer]}.{position}"  # type: ignore[index]
        elif _is_identity(node):
            self.names[node] = self.names[node.args[0]]  # type: ignore[index]
        else:
            self._call(node)

    def output(self, node: fx.Node) -> None:
        names = [self.names[value] for value in node.args[0]]  # type: ignore[union-attr,index]
        wanted = self.traced.outputs
        pairs = zip(wanted, names, strict=False)
        self.outputs = [ProgramOutput(name, value) for name, value in pairs]
        self.gradients = dict(zip(self.traced.gradients, names[len(wanted) :], strict=True))

    def _input(self, node: fx.Node, role: Role, key: str, value: Tensor) -> None:
        name = self.names[node] = input_name(role, key)
        self.inputs.append(ProgramInput(name, role, key, spec_of(value)))

    def _call(self, node: fx.Node) -> None:
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnsupportedError(
                f"{node.target} is not a tensor operation",
                where=f"operator {node.name!r}",
                hint="control flow and symbolic sizes cannot be placed; capture fixed shapes",
            )
        target, arguments, keywords = without_source(node)
        target = _LAZY.get(node.target, target)
        args = _plain(arguments, self.names, node.name)
        instruction = Instruction(
            name=node.name,
            target=target,
            args=args,
            kwargs={key: _plain(value, self.names, node.name) for key, value in keywords.items()},
            results=_results(node),
            mutates=_mutates(node, args),
            random=is_random(node),
        )
        phase, module = _origin(node, instruction.mutates)
        of = (node.meta.get("custom") or {}).get("micro_batch", 0)
        made = _outputs(node)
        self.calls.append(Call(instruction, made, phase, module, *work(node), micro_batch=of))
        # What reads the result of an update reads the input itself, behind the update.
        self.names[node] = instruction.mutates[0] if instruction.mutates else node.name


def _plain(argument: Any, names: Mapping[fx.Node, str], where: str) -> Any:
    """An argument of an fx node as plain data: numbers, strings, `Ref`, `Const`, tuples of them."""
    if isinstance(argument, fx.Node):
        return Ref(names[argument])
    if isinstance(argument, tuple | list):
        return tuple(_plain(part, names, where) for part in argument)
    if argument is None or isinstance(argument, bool | int | float | complex | str):
        return argument
    for kind, type_ in _FRAMEWORK_CONSTANTS.items():
        if isinstance(argument, type_):
            return Const(kind, str(argument).removeprefix("torch."))
    raise UnsupportedError(
        f"an argument of type {type(argument).__name__}",
        where=f"operator {where!r}",
        hint="only tensors, numbers, strings and lists of these can be kept in a program",
    )


def _origin(node: fx.Node, mutates: tuple[str, ...]) -> tuple[str, str]:
    """Phase and module of a node; a write-back to a buffer, which has none, has the buffer's."""
    custom = node.meta.get("custom") or {}
    if not custom and mutates:
        return "forward", mutates[0].partition(":")[2].rpartition(".")[0]
    return custom.get("phase", ""), custom.get("module", "")


def _is_identity(node: fx.Node) -> bool:
    """Whether the result equals the first argument: aliases, repeated draws, views of all of it."""
    if node.target in _IDENTITIES or (node.meta.get("custom") or {}).get(REPEATED):
        return True
    if node.target in _LAZY:
        return False
    lifted = node.target is aten.lift_fresh_copy.default
    view = getattr(node.target, "is_view", False)
    return lifted or (view and _same_layout(node.meta["val"], node.args[0]))


def _same_layout(made: Any, source: Any) -> bool:
    if not isinstance(made, Tensor) or not isinstance(source, fx.Node):
        return False
    given = source.meta["val"]
    return spec_of(made) == spec_of(given) and made.storage_offset() == given.storage_offset()


def _results(node: fx.Node) -> tuple[str, ...]:
    made = node.meta["val"]
    if not isinstance(made, tuple | list):
        # A call that changes a program input returns that input, under the input's own name.
        unread = made is None or not node.users or _is_mutable(node)
        return ("",) if unread else (node.name,)
    read = {user.args[1] for user in node.users if user.target is operator.getitem and user.users}
    return tuple(f"{node.name}.{k}" if k in read else "" for k in range(len(made)))


def _outputs(node: fx.Node) -> tuple[TensorSpec, ...]:
    made = node.meta["val"]
    parts = made if isinstance(made, tuple | list) else (made,)
    return tuple(spec_of(part) if isinstance(part, Tensor) else ABSENT for part in parts)


def _mutates(node: fx.Node, args: tuple[Any, ...]) -> tuple[str, ...]:
    """Program inputs that a call changes in place; the next step starts from what it writes."""
    if not _is_mutable(node):
        return ()
    schema = node.target._schema  # type: ignore[union-attr]
    changed = [
        argument
        for argument, declared in zip(args, schema.arguments, strict=False)
        if declared.alias_info is not None and declared.alias_info.is_write
    ]
    if not changed or not all(map(_is_mutable_input, changed)):
        raise changed_in_place(node)
    return tuple(argument.name for argument in changed)


def _is_mutable_input(argument: Any) -> bool:
    return isinstance(argument, Ref) and argument.name.partition(INPUT_MARK)[0] in _MUTABLE_ROLES


def _is_mutable(node: fx.Node) -> bool:
    return bool(node.target._schema.is_mutable)  # type: ignore[union-attr]


def _encoded(value: Tensor, key: str) -> str:
    """Base64 of a constant's bytes, row-major."""
    real = getattr(value, "constant", None) if isinstance(value, FakeTensor) else value
    if real is None or real.is_meta:
        raise UnsupportedError(
            "a tensor that is no parameter and no buffer has no data",
            where=f"constant {key!r}",
            hint="register it with register_buffer, or build the model off the meta device",
        )
    if real.layout is not torch.strided:
        raise sparse(real, f"constant {key!r}")
    raw = (
        real.detach()
        .resolve_conj()
        .resolve_neg()
        .contiguous()
        .reshape(-1)
        .view(torch.uint8)
        .numpy()
        .tobytes()
    )
    return base64.b64encode(raw).decode("ascii")
