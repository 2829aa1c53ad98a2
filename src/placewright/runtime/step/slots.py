"""Steps become slots: everything that can be looked up before the first step, is.

A slot calls one ATen operation on registers. That costs about a microsecond less than the
same call through ``nn.Module`` and five less than ``torch.fx.Interpreter``.

A program is captured on the CPU and names its operations. On a GPU most of them are the same. The
others:

- A view of a tensor whose strides differ from the CPU's may need a copy: it becomes a reshape.
- What is made of nothing without naming a device would be made on the host.
- Attention for CPUs becomes PyTorch's own choice for the device, where only its result is read.
- Draws of random numbers, and what the device has no kernel for, are done by the host: slow, and
  profiled as such. So a placement draws the numbers that eager draws on the CPU, wherever the
  draws are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from placewright.capturing.program_calls import materialise, resolve_target
from placewright.graph.graph import Const, Instruction, Ref
from placewright.runtime.step.partition import Part, Step
from placewright.runtime.wire import Message

Registers = list[Any]

Bind = Callable[[Registers], Sequence[Any]]

Call = Callable[..., Any]

SMALL_BYTES = 1 << 16
"""Not worth a look at the memory, which takes two microseconds."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One pre-resolved step.

    Attributes
    ----------
    bind
        Positional arguments from the registers.
    results
        Register of every output, -1 for one that is never read.
    waits, sends
        Messages with the registers that they fill or empty.
    posts
        Messages without tags to ask for before.
    """

    operator: int
    call: Call
    bind: Bind
    bind_kwargs: Callable[[Registers], dict[str, Any]] | None
    results: tuple[int, ...]
    waits: tuple[tuple[int, Message], ...]
    sends: tuple[tuple[int, Message], ...]
    frees: tuple[int, ...]
    posts: tuple[Message, ...] = ()


@dataclass(slots=True)
class CompiledPart:
    """The part of one device, ready to be executed step after step.

    `registers`: state and inputs keep their registers between steps, everything else is empty.
    """

    slots: tuple[Slot, ...]
    registers: Registers
    index: Mapping[str, int]
    outputs: Mapping[str, int]


def call(slot: Slot, registers: Registers) -> None:
    """Do one slot's operation: registers in, registers out."""
    if slot.bind_kwargs is None:
        out = slot.call(*slot.bind(registers))
    else:
        out = slot.call(*slot.bind(registers), **slot.bind_kwargs(registers))
    if not slot.results:  # an update in place
        return
    values = out if isinstance(out, list | tuple) else (out,)
    for register, value in zip(slot.results, values, strict=True):
        if register >= 0:
            registers[register] = value


def compile_part(
    part: Part,
    state: Mapping[str, torch.Tensor],
    device: str = "cpu",
    spared: Callable[[Call, int], Call] | None = None,
) -> CompiledPart:
    """Resolve operations and registers; `state` gives every program input of the part.

    Tensors that the program makes out of nothing are made on `device`.
    `spared`: makes calls, given with the bytes that they make, stay below a limit of memory.
    """
    names: dict[str, int] = {}
    for item in part.inputs:
        names[item.name] = len(names)
    for message in part.receives:
        names.setdefault(message.value, len(names))
    for step in part.steps:
        for result in filter(None, step.instruction.results):
            # Constants get their registers behind these, from `Binder`.
            names.setdefault(result, len(names))
    registers: Registers = [None] * len(names)
    for item in part.inputs:
        registers[names[item.name]] = state[item.name]
    in_place = in_place_targets(part)
    slots = tuple(
        _slot(
            step,
            in_place.get(step.operator, step.instruction.target),
            Binder(names, registers, device),
        )
        for step in part.steps
    )
    if spared is not None:
        slots = tuple(
            replace(slot, call=spared(slot.call, step.made_bytes))
            if step.made_bytes > SMALL_BYTES or step.waits  # which have taken memory
            else slot
            for slot, step in zip(slots, part.steps, strict=True)
        )
    outputs = {name: names[value] for name, value in part.outputs.items()}
    return CompiledPart(slots, registers, names, outputs)


def _slot(step: Step, target: str, binder: Binder) -> Slot:
    instruction, names = step.instruction, binder.names
    call, kwargs = resolve_target(target), instruction.kwargs
    if binder.device != "cpu":
        call, kwargs = kernel_on(call, instruction, binder.device)
    return Slot(
        operator=step.operator,
        call=call,
        bind=binder.sequence(instruction.args),
        bind_kwargs=binder.mapping(kwargs) if kwargs else None,
        results=tuple(names[r] if r else -1 for r in instruction.results),
        waits=tuple((names[m.value], m) for m in step.waits),
        sends=tuple((names[m.value], m) for m in step.sends),
        frees=tuple(names[v] for v in step.frees),
        posts=step.posts,
    )


@dataclass(frozen=True, slots=True)
class Binder:
    """Turns arguments into functions that read them from the registers.

    Constants get registers of their own, so that most calls find all their arguments with one
    look-up that is done in C.
    """

    names: Mapping[str, int]
    registers: Registers
    device: str

    def sequence(self, arguments: Sequence[Any]) -> Bind:
        """A function from registers to positional arguments."""
        if any(_is_nest(a) for a in arguments):
            parts = [
                self.sequence(a) if _is_nest(a) else self._single(self._register(a))
                for a in arguments
            ]
            nests = [_is_nest(a) for a in arguments]
            return lambda r: [
                list(part(r)) if nest else part(r)[0]
                for part, nest in zip(parts, nests, strict=True)
            ]
        positions = [self._register(a) for a in arguments]
        if len(positions) > 1:
            # With one position alone `itemgetter` would give no tuple.
            return itemgetter(*positions)
        return self._single(positions[0]) if positions else lambda registers: ()

    def mapping(self, kwargs: Mapping[str, Any]) -> Callable[[Registers], dict[str, Any]]:
        """A function from registers to keyword arguments."""
        keys, values = tuple(kwargs), self.sequence(tuple(kwargs.values()))
        return lambda registers: dict(zip(keys, values(registers), strict=True))

    def _register(self, argument: Any) -> int:
        if isinstance(argument, Ref):
            return self.names[argument.name]
        self.registers.append(materialise(argument, self.device))
        return len(self.registers) - 1

    @staticmethod
    def _single(position: int) -> Bind:
        return lambda registers: (registers[position],)


def _is_nest(argument: Any) -> bool:
    """Whether it is a list with a value in it."""
    return isinstance(argument, list | tuple) and _has_ref(argument)


def _has_ref(argument: Any) -> bool:
    if isinstance(argument, list | tuple):
        return any(_has_ref(item) for item in argument)
    return isinstance(argument, Ref)


RESHAPES = ("aten.view.default", "aten._unsafe_view.default")

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


def kernel_on(call: Call, instruction: Instruction, device: str) -> tuple[Call, Mapping[str, Any]]:
    """The callable and the keyword arguments with which an instruction runs on `device`.

    `call`: what runs it on a CPU.
    """
    kwargs = _with_device(call, instruction)
    if instruction.target in RESHAPES:
        return resolve_target("aten.reshape.default"), kwargs
    if instruction.target == ATTENTION and not any(instruction.results[1:]):
        return _attention, kwargs
    if instruction.random or lacks_kernel(call, device):
        return _by_host(call, device), kwargs
    return call, kwargs


def lacks_kernel(call: Call, device: str) -> bool:
    """Whether the device's own PyTorch has no kernel for an operation."""
    if not isinstance(call, torch._ops.OpOverload):
        return True  # wrapped because only the CPU has it
    name: str = call.name()  # type: ignore[no-untyped-call]
    key = {"cuda": "CUDA", "cpu": "CPU"}[torch.device(device).type]
    return not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)


def _with_device(call: Call, instruction: Instruction) -> Mapping[str, Any]:
    """Its keyword arguments, with a device for an operation that reads no tensor and names none."""
    kwargs = instruction.kwargs
    if "device" in kwargs or not isinstance(call, torch._ops.OpOverload):
        return kwargs
    takes = any(argument.name == "device" for argument in call._schema.arguments)
    if not takes or instruction.reads():
        return kwargs
    return {**kwargs, "device": Const("device", "cpu")}


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, None]:
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, attn_mask, dropout, causal, scale=scale), None


def _by_host(call: Call, device: str) -> Call:
    """The call on the host, its tensors taken there and back."""

    def made(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
        args, kwargs = tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
        return tree_map_only(torch.Tensor, lambda t: t.to(device), call(*args, **kwargs))

    return made


IN_PLACE = {
    "aten.relu.default": "aten.relu_.default",
    "aten.silu.default": "aten.silu_.default",
    "aten.hardtanh.default": "aten.hardtanh_.default",
    "aten.hardswish.default": "aten.hardswish_.default",
}

FRESH = frozenset(
    {
        "aten.convolution.default",
        "aten.native_batch_norm.default",
        "aten._native_batch_norm_legit.default",
        "aten._native_batch_norm_legit_no_training.default",
        "aten.addmm.default",
        "aten.mm.default",
        "aten.add.Tensor",
        "aten.cat.default",
    }
)
"""Operations whose results are memory of their own, never a view of an argument."""


def in_place_targets(part: Part) -> dict[int, str]:
    """Operator -> operation that writes over its first argument, where that changes nothing."""
    reads = Counter(value for step in part.steps for value in step.instruction.reads())
    sent = {message.value for step in part.steps for message in step.sends}
    fresh = {
        value
        for step in part.steps
        if step.instruction.target in FRESH
        for value in step.instruction.results
    } - sent
    return {
        step.operator: IN_PLACE[step.instruction.target]
        for step in part.steps
        if step.instruction.target in IN_PLACE
        # Memory of its own, read by this operator alone (so there is no view of it either), not
        # sent, and dead behind it: nobody can see that it is written over.
        and (value := _first(step)) in fresh
        and reads[value] == 1
        and value in step.frees
    }


def _first(step: Step) -> str:
    first = step.instruction.args[0]
    return first.name if isinstance(first, Ref) else ""
