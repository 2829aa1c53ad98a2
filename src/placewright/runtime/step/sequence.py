"""The step of one process: the slots of all its devices, one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from placewright.runtime.emulation import Stretch
from placewright.runtime.messages.exchange import Exchange
from placewright.runtime.messages.layout import Layout
from placewright.runtime.messages.wire import Message, message_key
from placewright.runtime.step.partition import Part, Step
from placewright.runtime.step.serial import (
    Action,
    CompiledAction,
    compile_actions,
    run_serially,
    serial_actions,
)
from placewright.runtime.step.slots import CompiledPart, Registers, Slot, call, compile_part
from placewright.runtime.timers import Timer, timer_of

Spans = tuple[tuple[float, ...], ...]
"""By part: start and end of every operator, ``time.perf_counter()`` seconds."""


@dataclass(frozen=True, slots=True)
class CompiledShare:
    """A share that can be executed step after step.

    Attributes
    ----------
    turns
        Slot, registers and part of every operation.
    timers
        By part.
    actions
        In place of `turns` where one operator or transfer happens at a time.
    """

    parts: tuple[CompiledPart, ...]
    turns: tuple[tuple[Slot, Registers, int], ...]
    timers: tuple[Timer, ...]
    actions: tuple[CompiledAction, ...] = ()

    @torch.no_grad()
    def run(self, exchange: Exchange, stretch: Stretch | None = None) -> None:
        """One step.

        With `stretch`, what was computed takes its emulated time before others can see it: all at
        once, because caches are cold after every sleep.
        """
        if self.actions:
            run_serially(self.actions, self.timers, exchange, stretch)
            return
        if stretch is not None:
            stretch.begin()
        for slot, registers, _ in self.turns:
            # Before the slot's own waits, in the one order that all ends share: see
            # `messages.nccl`.
            for message in slot.posts:
                exchange.post(message)
            if slot.waits:
                self._receive(slot, registers, exchange, stretch)
            call(slot, registers)
            if slot.sends:
                if stretch is not None:
                    stretch.pay()
                for register, message in slot.sends:
                    exchange.send(message, registers[register])
                if stretch is not None:
                    stretch.begin()
            for register in slot.frees:
                registers[register] = None
        if stretch is not None:
            stretch.pay()
        self.settle()

    @torch.no_grad()
    def run_watched(self, exchange: Exchange, stretch: Stretch | None) -> Spans:
        """One step; when each operator ran.

        With `stretch`, each operator also takes its emulated time.
        """
        marks = [list[Any]() for _ in self.parts]
        for timer in self.timers:
            timer.start()
        if self.actions:
            run_serially(self.actions, self.timers, exchange, stretch, marks)
            return self._spans(marks)
        if stretch is not None:
            stretch.begin()
        for slot, registers, part in self.turns:
            timer, noted = self.timers[part], marks[part]
            for message in slot.posts:
                exchange.post(message)
            if slot.waits:
                self._receive(slot, registers, exchange, stretch)
            noted.append(timer.mark())
            call(slot, registers)
            # Held here, as the registers are emptied within the span.
            leaving = [(message, registers[register]) for register, message in slot.sends]
            for register in slot.frees:  # giving memory back takes time: it belongs to the span
                registers[register] = None
            if stretch is not None:
                # What leaves has to have taken its time before others see it; else the sleep may be
                # put off.
                if leaving:
                    stretch.pay()
                else:
                    stretch.worked()
            noted.append(timer.mark())
            for message, tensor in leaving:
                exchange.send(message, tensor)
            if leaving and stretch is not None:
                stretch.begin()
        if stretch is not None:
            stretch.pay()
        self.settle()
        return self._spans(marks)

    def _spans(self, marks: Sequence[list[Any]]) -> Spans:
        return tuple(t.seconds(noted) for t, noted in zip(self.timers, marks, strict=True))

    @staticmethod
    def _receive(
        slot: Slot, registers: Registers, exchange: Exchange, stretch: Stretch | None
    ) -> None:
        """Wait for a slot's messages; waiting is no work that a slower device would do longer."""
        if stretch is not None:
            stretch.pay()
        for register, message in slot.waits:
            registers[register] = exchange.take(message)
        if stretch is not None:
            stretch.begin()

    def settle(self) -> None:
        """Wait until every device has done what was launched."""
        for timer in self.timers:
            timer.settle()


def compile_share(
    share: Share, state: Mapping[int, Mapping[str, torch.Tensor]], layout: Layout
) -> CompiledShare:
    """Resolve operations and registers.

    `state`: by device every program input of its part, in that device's memory.
    """
    places = [layout.devices[part.device].torch_device for part in share.parts]
    parts = tuple(
        compile_part(part, state[part.device], place)
        for part, place in zip(share.parts, places, strict=True)
    )
    slots = [iter(part.slots) for part in parts]
    turns = tuple((next(slots[k]), parts[k].registers, k) for k in share.turns)
    by_operator = {slot.operator: slot for part in parts for slot in part.slots}
    registers, index = [part.registers for part in parts], [part.index for part in parts]
    actions = compile_actions(share.actions, share.parts, by_operator, registers, index)
    return CompiledShare(parts, turns, tuple(map(timer_of, places)), actions)


@dataclass(frozen=True, slots=True)
class Share:
    """What one process does in a step.

    Attributes
    ----------
    parts
        One per device that it drives.
    turns
        For every step of the sequence the part (its position in `parts`) whose next step it is.
    actions
        Where one operator or transfer happens at a time in the whole system: this process's.
    settings
        Of `placewright.graph.program.Program`.
    """

    parts: tuple[Part, ...]
    turns: tuple[int, ...]
    actions: tuple[Action, ...] = ()
    settings: Mapping[str, str | bool | int] = field(default_factory=dict)


def shares(
    parts: Sequence[Part],
    order: Sequence[int],
    processes: Sequence[int],
    *,
    serial: bool = False,
    settings: Mapping[str, str | bool | int] = MappingProxyType({}),
) -> list[Share]:
    """One share per process, from one part per device.

    Parameters
    ----------
    order
        Every operator of the graph once, producers before consumers. A process keeps it, so
        that what one of its devices makes is there when another one needs it.
    processes
        The rank of every device's process.
    serial
        One operator or transfer at a time in the whole system (`placewright.runtime.step.serial`).
    settings
        Of the program.
    """
    groups: list[list[int]] = [[] for _ in range(max(processes) + 1)]
    for device, process in enumerate(processes):
        groups[process].append(device)
    parts = posted(parts, order)
    found = [
        replace(_share([parts[d] for d in group], order), settings=dict(settings))
        for group in groups
    ]
    if not serial:
        return found
    actions = serial_actions(parts, order, processes)
    return [replace(share, actions=a) for share, a in zip(found, actions, strict=True)]


def _share(parts: Sequence[Part], order: Sequence[int]) -> Share:
    home = {step.operator: part.device for part in parts for step in part.steps}
    place = {part.device: k for k, part in enumerate(parts)}
    turns = (place[home[i]] for i in order if i in home)
    return Share(tuple(parts), tuple(turns))


def posted(parts: Sequence[Part], order: Sequence[int]) -> tuple[Part, ...]:
    """The parts with `Step.posts`: before a step, the messages that earlier operators make.

    `order`: every operator of the graph once, as the parts were cut.
    """
    place = {operator: k for k, operator in enumerate(order)}
    made = {
        message_key(message): place[step.operator]
        for part in parts
        for step in part.steps
        for message in step.sends
    }
    return tuple(_posted(part, place, made) for part in parts)


def _posted(part: Part, place: dict[int, int], made: dict[tuple[int, int], int]) -> Part:
    untagged = [m for m in part.receives if m.way == "nccl"]
    if not untagged:
        return part
    coming = deque(sorted(untagged, key=lambda m: (made[message_key(m)], *message_key(m))))
    steps = tuple(_step(step, coming, place, made) for step in part.steps)
    return replace(part, steps=steps)


def _step(
    step: Step,
    coming: deque[Message],
    place: dict[int, int],
    made: dict[tuple[int, int], int],
) -> Step:
    due = []
    # Posted as late as the order allows: a posted receive takes its memory at once.
    while coming and made[message_key(coming[0])] < place[step.operator]:
        due.append(coming.popleft())
    return replace(step, posts=tuple(due)) if due else step
