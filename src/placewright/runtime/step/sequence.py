"""The step of one process: the slots of all its devices, one after another.

In a serial step one operator or transfer happens at a time in the whole system. All processes
follow one sequence, the predicted one, and exactly one of them has *control*. It does its operators
and lets their tensors leave one after the other. A transfer takes control along: its receiver has
it once the tensor is there, and gives it back where the sender has another one to send. Where the
next operator belongs to a third process, control goes there as a message of one byte, outside of
emulated links. Every process does what concerns it in the order of the one sequence, so the first
thing of it that is not done waits for nothing but earlier ones, and no two processes can wait for
each other.

    a: run x, send t to b, await b, send t to c            a has control, then b, a, c
    b: take t, give to a
    c: take t, give to b
    b: await c, run y
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.distributed as dist

from placewright.runtime.emulation import Stretch
from placewright.runtime.memory import MemoryUse
from placewright.runtime.messages import Exchange
from placewright.runtime.specs import Layout
from placewright.runtime.step.partition import Part, Step
from placewright.runtime.step.slots import CompiledPart, Registers, Slot, call, compile_part
from placewright.runtime.step_record import Timer, timer_of
from placewright.runtime.wire import Message, message_key

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
    share: Share,
    state: Mapping[int, Mapping[str, torch.Tensor]],
    layout: Layout,
    memory: MemoryUse | None = None,
) -> CompiledShare:
    """Resolve operations and registers.

    `state`: by device every program input of its part, in that device's memory.
    `memory`: where it has a limit, operations stay below it; see `MemoryUse.spared`.
    """
    places = [layout.devices[part.device].torch_device for part in share.parts]
    spared = memory.spared if memory is not None and memory.limit_bytes < math.inf else None
    parts = tuple(
        compile_part(part, state[part.device], place, spared if place == "cpu" else None)
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
        Of `placewright.graph.graph.Program`.
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
        One operator or transfer at a time in the whole system (`run_serially`).
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


Kind = Literal["run", "send", "take", "give", "await"]

CONTROL_TAG = (1 << 30) - 1
"""Of the messages that carry control; tags of tensors are smaller."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a process does in its turn.

    Attributes
    ----------
    device
        ``run``: where; ``send`` and ``take``: this end of the message.
    operator
        ``run``: position in the graph.
    message
        ``send`` and ``take``.
    process
        ``give`` and ``await``: the other one.
    """

    kind: Kind
    device: int = -1
    operator: int = -1
    message: Message | None = None
    process: int = -1


def serial_actions(
    parts: Sequence[Part], order: Sequence[int], processes: Sequence[int]
) -> list[tuple[Action, ...]]:
    """What each process does, in the order of the one sequence.

    `order`: every operator of the graph once, producers before consumers.
    `processes`: the rank of every device's process.
    """
    actions: list[list[Action]] = [[] for _ in range(max(processes) + 1)]
    steps = {step.operator: (part.device, step) for part in parts for step in part.steps}
    control = processes[steps[order[0]][0]] if order else 0

    def hand_over(to: int) -> int:
        if to != control:
            actions[control].append(Action("give", process=to))
            actions[to].append(Action("await", process=control))
        return to

    for operator in order:
        device, step = steps[operator]
        own = processes[device]
        control = hand_over(own)
        actions[own].append(Action("run", device, operator))
        for message in step.sends:
            control = hand_over(own)
            actions[own].append(Action("send", device, message=message))
            # With the tensor itself, no message of its own: the receiver's next action is to take
            # it.
            control = processes[message.target]
            actions[control].append(Action("take", message.target, message=message))
    return [tuple(found) for found in actions]


@dataclass(frozen=True, slots=True)
class CompiledAction:
    """An action with all that it needs; what a kind does not need is empty."""

    kind: Kind
    part: int = -1
    slot: Slot | None = None
    registers: Registers | None = None
    register: int = -1
    message: Message | None = None
    process: int = -1


def compile_actions(
    actions: Sequence[Action],
    parts: Sequence[Part],
    slots: Mapping[int, Slot],
    registers: Sequence[Registers],
    index: Sequence[Mapping[str, int]],
) -> tuple[CompiledAction, ...]:
    """Look everything up.

    `slots`: by operator.
    `registers`, `index`: by part.
    """
    place = {part.device: k for k, part in enumerate(parts)}
    found = []
    for action in actions:
        if action.process >= 0:
            found.append(CompiledAction(action.kind, process=action.process))
            continue
        part = place[action.device]
        own, message = registers[part], action.message
        if message is not None:
            at = index[part][message.value]
            found.append(CompiledAction(action.kind, part, None, own, at, message))
            continue
        found.append(CompiledAction("run", part, slots[action.operator], own))
    return tuple(found)


def run_serially(
    actions: Sequence[CompiledAction],
    timers: Sequence[Timer],
    exchange: Exchange,
    stretch: Stretch | None = None,
    noted: Sequence[list[Any]] | None = None,
) -> None:
    """One step of one process; with `noted`, by part, start and end of every operator."""
    token = torch.zeros(1, dtype=torch.uint8)
    pending: tuple[Registers, tuple[int, ...]] = ([], ())
    work = _Work(stretch, noted)
    for action in actions:
        if action.kind == "run":
            _free(pending)
            # Freed one operator later: its results have left by then, and what is freed is in
            # nobody's time.
            pending = work.do(action, timers[action.part])
            continue
        work.over()
        if action.kind == "send":
            assert action.message is not None
            assert action.registers is not None
            exchange.send(action.message, action.registers[action.register])
        elif action.kind == "take":
            _take(action, exchange, timers[action.part])
        elif action.kind == "give":
            dist.send(token, dst=action.process, tag=CONTROL_TAG)
        else:
            dist.recv(token, src=action.process, tag=CONTROL_TAG)
    work.over()
    _free(pending)
    for timer in timers:
        timer.settle()


@dataclass(slots=True)
class _Work:
    """Operators one after another, which take their emulated time before others can see them.

    `noted`: by part, start and end of every operator; each then takes its emulated time by itself.
    """

    stretch: Stretch | None
    noted: Sequence[list[Any]] | None
    begun: bool = False

    def do(self, action: CompiledAction, timer: Timer) -> tuple[Registers, tuple[int, ...]]:
        """Do an operator to its end; what is to be freed once its results have left."""
        assert action.slot is not None
        assert action.registers is not None
        if self.noted is not None:
            self.noted[action.part].append(timer.mark())
        if self.stretch is not None and not self.begun:
            self.stretch.begin()
            self.begun = True
        call(action.slot, action.registers)
        if self.noted is not None:
            self.over()
            self.noted[action.part].append(timer.mark())
        timer.settle()
        return action.registers, action.slot.frees

    def over(self) -> None:
        """Others may see what was done."""
        if self.begun and self.stretch is not None:
            self.stretch.pay()
        self.begun = False


def _take(action: CompiledAction, exchange: Exchange, timer: Timer) -> None:
    assert action.message is not None
    assert action.registers is not None
    if action.message.way == "nccl":
        exchange.post(action.message)
    action.registers[action.register] = exchange.take(action.message)
    timer.settle()


def _free(pending: tuple[Registers, tuple[int, ...]]) -> None:
    registers, frees = pending
    for register in frees:
        registers[register] = None
