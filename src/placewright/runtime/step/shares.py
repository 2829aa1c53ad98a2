"""Several devices in one process: their parts become one sequence, in the predicted order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from placewright.runtime.messages.wire import Message, message_key
from placewright.runtime.step.partition import Part, Step
from placewright.runtime.step.serial import Action, serial_actions


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
