"""Segments: runs of operators of one device that a stream executes without waiting in between.

A step waits for a message where an operator first reads it. A stream waits once per segment, for
all messages that any of its operators reads, so that the device can work on another sample
meanwhile. With several samples in flight every message needs buffers and a tag of its own per
sample: a sample has a *slot*, its number modulo the window, and the tag of a message in slot s is

    tag of the step's message * window + s

A slot is used again only once the sample before has left every device, so no two samples in flight
share a tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from placewright.runtime.messages.wire import Message, message_key
from placewright.runtime.step.partition import Part, Step, references
from placewright.runtime.step.sequence import CompiledShare, Share
from placewright.runtime.step.slots import Slot

Tagged = tuple[Message, ...]
"""One message by slot."""


@dataclass(slots=True)
class Bundle:
    """Messages of one segment from one other process, taken by a thread of its own.

    Attributes
    ----------
    segment
        Position of the segment that waits for them.
    messages
        Register and message by slot.
    arrived
        How many samples have all of them here.
    """

    segment: int
    messages: list[tuple[int, Tagged]]
    arrived: int = 0


@dataclass(slots=True)
class Segment:
    """A run of slots of one part.

    Attributes
    ----------
    part
        Position of the part in the share.
    sends
        By slot of the run: register and message by slot of the window.
    copied
        Messages from devices of the same process.
    sources
        Segments of the same process that must have done the sample before: the one before on its
        device, and those that make what is copied.
    gated_by
        Segment that must have done the *previous* sample: state that samples change, and random
        numbers, are used by one sample after the other.
    done
        How many samples it has done; samples are done in order.
    """

    part: int
    slots: tuple[Slot, ...]
    sends: tuple[tuple[tuple[int, Tagged], ...], ...]
    copied: list[tuple[int, Tagged]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    bundles: list[Bundle] = field(default_factory=list)
    gated_by: int = -1
    done: int = 0


def tagged(message: Message, window: int) -> Tagged:
    """The message by slot."""
    return tuple(replace(message, tag=message.tag * window + s) for s in range(window))


def segments_of(
    share: Share, compiled: CompiledShare, lengths: Sequence[Sequence[int]], window: int
) -> list[Segment]:
    """Cut the compiled parts of a process into segments.

    `lengths`: by part, how many operators each segment has, in the part's order.
    `window`: most samples in flight.
    """
    found: list[Segment] = []
    made: dict[tuple[int, int], int] = {}
    for k, (part, own, runs) in enumerate(zip(share.parts, compiled.parts, lengths, strict=True)):
        start, first = 0, len(found)
        for length in runs:
            slots = own.slots[start : start + length]
            for slot in slots:
                # By message the segment that makes it: the one that is appended below.
                made |= {message_key(m): len(found) for _, m in slot.sends if m.way == "copy"}
            sends = tuple(
                tuple((register, tagged(m, window)) for register, m in slot.sends) for slot in slots
            )
            found.append(Segment(k, slots, sends))
            if len(found) - 1 > first:
                found[-1].sources.append(len(found) - 2)
            start += length
        _gate(found, first, part)
    # Only now: a device may read what a later one of this process makes.
    for index, segment in enumerate(found):
        _receive(segment, index, made, window)
    return found


def _receive(segment: Segment, index: int, made: dict[tuple[int, int], int], window: int) -> None:
    """Enter what a segment waits for."""
    bundles: dict[int, Bundle] = {}
    for slot in segment.slots:
        for register, message in slot.waits:
            entry = (register, tagged(message, window))
            if message.way == "copy":
                segment.copied.append(entry)
                segment.sources.append(made[message_key(message)])
                continue
            bundle = bundles.setdefault(message.source, Bundle(index, []))
            bundle.messages.append(entry)
    segment.bundles = list(bundles.values())


def _gate(segments: list[Segment], first: int, part: Part) -> None:
    """Let one sample after the other through segments that use what samples change."""
    changing = {i.name for i in part.inputs if i.mutated}
    steps = {step.operator: step for step in part.steps}
    held = [
        k
        for k in range(first, len(segments))
        if any(_depends(steps[slot.operator], changing) for slot in segments[k].slots)
    ]
    if held:
        # From the first that uses such state to the last: all between are in order already, as
        # segments of one device are.
        segments[held[0]].gated_by = held[-1]


def _depends(step: Step, changing: set[str]) -> bool:
    instruction = step.instruction
    if instruction.random or instruction.mutates:
        return True
    return any(value in changing for value in references([instruction.args, instruction.kwargs]))
