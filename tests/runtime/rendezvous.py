"""Simulate NCCL without buffering, to find deadlocks between the shares of a program.

A process has a host and two streams, one that computes and one for all its untagged messages. A
stream does one thing after the other; a message begins after what was asked of the computing
stream before it, and is done when it is first in line at both ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placewright.runtime.step.sequence import Share
from placewright.runtime.wire import message_key

Action = tuple[str, tuple[int, int]]


def script(share: Share) -> Iterator[Action]:
    """What the host of a process does, in the order in which the engine does it."""
    steps = [iter(part.steps) for part in share.parts]
    for k in share.turns:
        step = next(steps[k])
        yield from (("name", message_key(m)) for m in step.posts)
        for m in step.waits:
            if m.way != "copy":
                yield ("receive" if m.way == "gloo" else "join"), message_key(m)
        yield "compute", (step.operator, -1)
        for m in step.sends:
            if m.way != "copy":
                yield ("deliver" if m.way == "gloo" else "name"), message_key(m)


class Process:
    """What a process has done: its host's actions, and how far its streams are."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self.actions, self.at, self.entered = actions, 0, False
        self.stream: list[Action] = []
        self.streamed = 0
        self.line: list[tuple[tuple[int, int], int]] = []
        self.lined = 0

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        ends = (len(self.actions), len(self.stream), len(self.line))
        return (self.at, self.streamed, self.lined) == ends

    @property
    def ready(self) -> tuple[int, int] | None:
        """The message that is first in line, if it may begin."""
        if self.lined == len(self.line) or self.line[self.lined][1] > self.streamed:
            return None
        return self.line[self.lined][0]


def ends(actions: Sequence[Sequence[Action]], *, blocking: bool) -> bool:
    """Whether everything is done at last.

    Parameters
    ----------
    blocking
        A host that names a message waits until the other end names it too.
    """
    processes = [Process(a) for a in actions]
    done, delivered, named = set(), set(), list[tuple[int, int]]()
    while True:
        before = [(p.at, p.entered, p.streamed, p.lined) for p in processes]
        for p in processes:
            if p.streamed < len(p.stream):
                verb, what = p.stream[p.streamed]
                p.streamed += verb != "join" or what in done
                if verb == "deliver":
                    delivered.add(what)
            if p.at < len(p.actions):
                verb, what = p.actions[p.at]
                if verb == "name":
                    if not p.entered:
                        p.line.append((what, len(p.stream)))
                        named.append(what)
                    p.entered = blocking and named.count(what) < 2
                    p.at += not p.entered
                elif verb == "receive":
                    p.at += what in delivered
                else:
                    p.stream.append((verb, what))
                    p.at += 1
        first = [p.ready for p in processes]
        for p in processes:
            if p.ready is not None and first.count(p.ready) == 2:
                done.add(p.ready)
        for p in processes:
            p.lined += p.ready in done
        if before == [(p.at, p.entered, p.streamed, p.lined) for p in processes]:
            return all(p.over for p in processes)
