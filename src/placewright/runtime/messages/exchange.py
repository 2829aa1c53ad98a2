"""Every message of one process by the way that it goes.

NCCL carries messages between GPUs of two processes from one memory to the other. NCCL's messages
have no tags: both ends of a pair must name them in the same order. And it does them one after the
other, each until both ends are there, so that two GPUs that first send and then receive wait for
each other for ever. Here every process names all its messages, sent and received, in one order that
is the same everywhere: that of their producers in the program's order (`Step.posts`).

Why no deadlock is possible: take the first message, in that order, that is not done. Everything
that its producer needs, and everything that its sender had to name or compute before, depends on
earlier messages, which are done: so it is made and sent. Its receiver names it after operators,
sends and receives that are all earlier, which are done for the same reason: so it is received. That
holds also where a call blocks the host until the other end is there, as NCCL's first calls of a
pair do, and where freeing memory makes the host wait for the GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from placewright.runtime.emulation import ShapedLink
from placewright.runtime.messages.gloo import GlooReceiver, GlooSender
from placewright.runtime.messages.layout import THROUGH_HOST, Driven, Layout
from placewright.runtime.messages.streams import Copies, Streams
from placewright.runtime.messages.wire import Message, message_key, tensor_of, wire, wire_bytes
from placewright.runtime.timers import Timer


class Exchange:
    """Copies between the process's devices, NCCL between GPUs, gloo for the rest.

    `links`: emulated links by target device.
    `group`: the processes with GPUs; ``None`` where NCCL joins none of this one's.
    """

    def __init__(
        self,
        layout: Layout,
        process: int,
        links: Mapping[int, ShapedLink],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        own = [layout.devices[d].torch_device for d in layout.device_group(process)]
        streams = Streams(own)
        self.layout = layout
        self.sender = GlooSender(links, layout.devices, streams)
        self.copies = Copies(layout.devices, streams)
        self.direct = None if group is None else NcclMessages(group, layout.devices)
        self.receiver = GlooReceiver((), layout.devices)

    def expect(self, receives: Iterable[Message]) -> None:
        """Make room for what arrives through host memory in every step from now on."""
        # What the sender has learned is by message: buffers for the moment at which it is due,
        # among others.
        self.sender.forget()
        self.receiver = GlooReceiver(
            [m for m in receives if m.way in THROUGH_HOST], self.layout.devices
        )

    def start(self) -> None:
        """Begin a step: ask for what has tags."""
        self.receiver.post()
        self.sender.log.clear()
        self.copies.log.clear()

    def post(self, message: Message) -> None:
        """Ask for a message without a tag."""
        assert self.direct is not None
        self.direct.post(message)

    def take(self, message: Message) -> torch.Tensor:
        """What has arrived, in the memory of its device."""
        if message.way in THROUGH_HOST:
            return self.receiver.take(message)
        if message.way == "copy":
            return self.copies.take(message)
        assert self.direct is not None
        return self.direct.take(message)

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Let a tensor leave; returns before it has arrived."""
        if message.way in THROUGH_HOST:
            self.sender.send(message, tensor)
        elif message.way == "copy":
            self.copies.send(message, tensor)
        else:
            assert self.direct is not None
            self.direct.send(message, tensor)

    def flush(self) -> None:
        """Wait until everything has left."""
        self.sender.flush()
        if self.direct is not None:
            self.direct.flush()

    def sent(self, timers: Mapping[int, Timer]) -> list[tuple[int, int, int, float, float]]:
        """Source, tensor, target, start and end of the step's transfers; NCCL reports none.

        `timers`: by source device.
        """
        found = [(s.source, s.tag, s.target, s.start_s, s.end_s) for s in self.sender.log]
        for message, span in self.copies.log:
            start, end = _seconds(span, timers[message.source])
            found.append((message.source, message.tag, message.target, start, end))
        return found


def _seconds(span: tuple[Any, Any], timer: Timer) -> tuple[float, ...]:
    """A copy that the host waited for was timed by the host."""
    return span if isinstance(span[0], float) else timer.seconds(span)


class NcclMessages:
    """Both directions of all such links of one process.

    `group`: the processes with GPUs, on NCCL. On any other backend the same calls do the same.
    """

    def __init__(self, group: dist.ProcessGroup, devices: Sequence[Driven]) -> None:
        self._group, self._devices = group, devices
        self._coming: dict[tuple[int, int], tuple[torch.Tensor, dist.Work]] = {}
        self._leaving: deque[tuple[torch.Tensor, dist.Work]] = deque()

    def post(self, message: Message) -> None:
        """Ask for a message. Memory for it is taken here, as late as the order allows."""
        place = self._devices[message.target].torch_device
        raw = torch.empty(wire_bytes(message.spec), dtype=torch.uint8, device=place)
        source = self._devices[message.source].process
        work = dist.irecv(raw, src=source, group=self._group)
        assert work is not None
        self._coming[message_key(message)] = raw, work

    def take(self, message: Message) -> torch.Tensor:
        """The tensor; kernels that are started afterwards find it complete."""
        raw, work = self._coming.pop(message_key(message))
        work.wait()
        return tensor_of(raw, message.spec)

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Name a message; returns before it has left. Its memory is kept until then."""
        raw = wire(tensor, message.spec)
        target = self._devices[message.target].process
        work = dist.isend(raw, dst=target, group=self._group)
        assert work is not None
        self._leaving.append((raw, work))
        # NCCL does them in the order in which they were named: behind one that has not left, none
        # has.
        while self._leaving and self._leaving[0][1].is_completed():
            self._leaving.popleft()

    def flush(self) -> None:
        """Wait until everything has left."""
        while self._leaving:
            self._leaving.popleft()[1].wait()
