"""Steps become slots: everything that can be looked up before the first step, is.

A slot calls one ATen operation on registers. That costs about a microsecond less than the
same call through ``nn.Module`` and five less than ``torch.fx.Interpreter``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from placewright.capture.program_calls import materialise, resolve_target
from placewright.execute.emulation import Stretch
from placewright.execute.partition import Message, Part, Step
from placewright.execute.reuse import in_place_targets
from placewright.execute.transport import Courier, Mailbox
from placewright.graph.program import Ref

Registers = list[Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """One pre-resolved step.

    Attributes
    ----------
    bind
        Positional arguments from the registers.
    results
        Register of every output, -1 for one that nobody reads.
    waits, sends
        Messages with the registers that they fill or empty.
    """

    operator: int
    call: Callable[..., Any]
    bind: Callable[[Registers], list[Any]]
    bind_kwargs: Callable[[Registers], dict[str, Any]] | None
    results: tuple[int, ...]
    waits: tuple[tuple[int, Message], ...]
    sends: tuple[tuple[int, Message], ...]
    frees: tuple[int, ...]


@dataclass(slots=True)
class CompiledPart:
    """A part that can be executed step after step.

    Attributes
    ----------
    registers
        State and inputs keep their registers between steps, everything else is empty.
    settle
        Waits until the device has done what it was asked for; ``None`` where calls return
        when they are done.
    """

    slots: tuple[Slot, ...]
    registers: Registers
    index: Mapping[str, int]
    outputs: Mapping[str, int]
    settle: Callable[[], None] | None = None

    @torch.no_grad()
    def run(self, mailbox: Mailbox, courier: Courier) -> None:
        """One step at full speed."""
        registers = self.registers
        for slot in self.slots:
            for register, message in slot.waits:
                registers[register] = mailbox.take(message)
            _call(slot, registers)
            for register, message in slot.sends:
                courier.send(message, registers[register])
            for register in slot.frees:
                registers[register] = None
        if self.settle is not None:
            self.settle()

    @torch.no_grad()
    def run_watched(
        self, mailbox: Mailbox, courier: Courier, stretch: Stretch | None, spans: list[float]
    ) -> None:
        """One step with the start and end of every operator appended to `spans`.

        With `stretch`, each operator also takes its emulated time.
        """
        registers, clock, cpu = self.registers, time.perf_counter, time.thread_time
        for slot in self.slots:
            if slot.waits and stretch is not None:
                stretch.pay()
            for register, message in slot.waits:
                registers[register] = mailbox.take(message)
            spans.append(clock())
            before = cpu()
            _call(slot, registers)
            leaving = [(message, registers[register]) for register, message in slot.sends]
            for register in slot.frees:  # giving memory back takes time: it belongs to the span
                registers[register] = None
            if self.settle is not None:
                self.settle()
            if stretch is not None:
                stretch.add(cpu() - before)
                if leaving:
                    stretch.pay()
            spans.append(clock())
            for message, tensor in leaving:
                courier.send(message, tensor)
        if stretch is not None:
            stretch.pay()


def _call(slot: Slot, registers: Registers) -> None:
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
    part: Part, state: Mapping[str, torch.Tensor], device: str = "cpu"
) -> CompiledPart:
    """Resolve operations and registers; `state` gives every program input of the part.

    Tensors that the program makes out of nothing are made on `device`.
    """
    names: dict[str, int] = {}
    for item in part.inputs:
        names[item.name] = len(names)
    for message in part.receives:
        names.setdefault(message.value, len(names))
    for step in part.steps:
        for result in filter(None, step.instruction.results):
            names.setdefault(result, len(names))
    in_place = in_place_targets(part)
    slots = tuple(
        _slot(step, in_place.get(step.operator, step.instruction.target), names, device)
        for step in part.steps
    )
    registers: Registers = [None] * len(names)
    for item in part.inputs:
        registers[names[item.name]] = state[item.name]
    outputs = {name: names[value] for name, value in part.outputs.items()}
    settle = torch.cuda.synchronize if device.startswith("cuda") else None
    return CompiledPart(slots, registers, names, outputs, settle)


def _slot(step: Step, target: str, names: Mapping[str, int], device: str) -> Slot:
    instruction = step.instruction
    kwargs = instruction.kwargs
    return Slot(
        operator=step.operator,
        call=resolve_target(target),
        bind=_bind_list(instruction.args, names, device),
        bind_kwargs=_bind_dict(kwargs, names, device) if kwargs else None,
        results=tuple(names[r] if r else -1 for r in instruction.results),
        waits=tuple((names[m.value], m) for m in step.waits),
        sends=tuple((names[m.value], m) for m in step.sends),
        frees=tuple(names[v] for v in step.frees),
    )


def _bind_list(
    arguments: Sequence[Any], names: Mapping[str, int], device: str
) -> Callable[[Registers], Any]:
    """A function from registers to the list of arguments."""
    template: list[Any] = []
    direct: list[tuple[int, int]] = []
    nested: list[tuple[int, Callable[[Registers], Any]]] = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, Ref):
            direct.append((position, names[argument.name]))
            template.append(None)
        elif isinstance(argument, list | tuple) and _has_ref(argument):
            nested.append((position, _bind_list(argument, names, device)))
            template.append(None)
        else:
            template.append(materialise(argument, device))

    def bind(registers: Registers) -> list[Any]:
        filled = template.copy()
        for position, register in direct:
            filled[position] = registers[register]
        for position, inner in nested:
            filled[position] = inner(registers)
        return filled

    return bind


def _bind_dict(
    kwargs: Mapping[str, Any], names: Mapping[str, int], device: str
) -> Callable[[Registers], dict[str, Any]]:
    keys = tuple(kwargs)
    bind = _bind_list(tuple(kwargs.values()), names, device)
    return lambda registers: dict(zip(keys, bind(registers), strict=True))


def _has_ref(argument: Any) -> bool:
    if isinstance(argument, list | tuple):
        return any(_has_ref(item) for item in argument)
    return isinstance(argument, Ref)
