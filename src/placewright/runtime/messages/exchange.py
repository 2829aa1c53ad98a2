"""Every message of one process by the way that it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from placewright.runtime.emulation import ShapedLink
from placewright.runtime.messages.gloo import GlooReceiver, GlooSender
from placewright.runtime.messages.layout import THROUGH_HOST, Layout
from placewright.runtime.messages.nccl import NcclMessages
from placewright.runtime.messages.streams import Copies, Streams
from placewright.runtime.messages.wire import Message
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
