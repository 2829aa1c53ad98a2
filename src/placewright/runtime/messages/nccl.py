"""Messages between GPUs of two processes, which NCCL carries from one memory to the other.

NCCL's messages have no tags: both ends of a pair must name them in the same order. And it does
them one after the other, each until both ends are there, so that two GPUs that first send and
then receive wait for each other for ever. Here every process names all its messages, sent and
received, in one order that is the same everywhere: that of their producers in the program's
order (`Step.posts`).

Why no deadlock is possible: take the first message, in that order, that is not done. Everything
that its producer needs, and everything that its sender had to name or compute before, depends on
earlier messages, which are done: so it is made and sent. Its receiver names it after operators,
sends and receives that are all earlier, which are done for the same reason: so it is received. That
holds also where a call blocks the host until the other end is there, as NCCL's first calls of a
pair do, and where freeing memory makes the host wait for the GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist

from placewright.runtime.messages.layout import Driven
from placewright.runtime.messages.wire import Message, message_key, tensor_of, wire, wire_bytes


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
