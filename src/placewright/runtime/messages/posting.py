"""When each process asks for messages that carry no tags: both ends name them in one order.

The order is that of the steps that make them. `placewright.runtime.messages.direct` says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from placewright.runtime.step.partition import Message, Part, Step, turn


def posted(parts: Sequence[Part], order: Sequence[int]) -> tuple[Part, ...]:
    """The parts with `Step.posts`: before a step, the messages that earlier operators make.

    Parameters
    ----------
    order
        Every operator of the graph once, as the parts were cut.
    """
    place = {operator: k for k, operator in enumerate(order)}
    made = {
        turn(message): place[step.operator]
        for part in parts
        for step in part.steps
        for message in step.sends
    }
    return tuple(_posted(part, place, made) for part in parts)


def _posted(part: Part, place: dict[int, int], made: dict[tuple[int, int], int]) -> Part:
    untagged = [m for m in part.receives if m.way == "nccl"]
    if not untagged:
        return part
    coming = deque(sorted(untagged, key=lambda m: (made[turn(m)], *turn(m))))
    steps = tuple(_step(step, coming, place, made) for step in part.steps)
    return replace(part, steps=steps)


def _step(
    step: Step,
    coming: deque[Message],
    place: dict[int, int],
    made: dict[tuple[int, int], int],
) -> Step:
    due = []
    while coming and made[turn(coming[0])] < place[step.operator]:
        due.append(coming.popleft())
    return replace(step, posts=tuple(due)) if due else step
