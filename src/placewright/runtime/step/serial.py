"""A step in which one operator or transfer happens at a time in the whole system.

All processes follow one sequence, the predicted one, and exactly one of them has *control*. It
does its operators and lets their tensors leave one after the other. A transfer takes control
along: its receiver has it once the tensor is there, and gives it back where the sender has another
one to send. Where the next operator belongs to a third process, control goes there as a message of
one byte, outside of emulated links. Every process does what concerns it in the order of the one
sequence, so the first thing of it that is not done waits for nothing but earlier ones, and no two
processes can wait for each other.

    a: run x, send t to b, await b, send t to c            a has control, then b, a, c
    b: take t, give to a
    c: take t, give to b
    b: await c, run y
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from placewright.runtime.emulation import Stretch
from placewright.runtime.messages.exchange import Exchange
from placewright.runtime.messages.wire import Message
from placewright.runtime.step.partition import Part
from placewright.runtime.step.slots import Registers, Slot, call
from placewright.runtime.timers import Timer

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
