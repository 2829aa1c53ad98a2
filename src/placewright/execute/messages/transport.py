"""Tensors between worker processes through host memory: gloo."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from placewright.execute.emulation import ShapedLink, precise_sleeps
from placewright.execute.messages.streams import Moved, Streams
from placewright.execute.messages.ways import Driven
from placewright.execute.messages.wire import is_dense, tensor_of, wire, wire_bytes
from placewright.execute.step.partition import Message, turn


@dataclass(frozen=True, slots=True)
class Sent:
    """One transfer as its sender saw it, ``time.perf_counter()`` seconds."""

    tag: int
    source: int
    target: int
    start_s: float
    end_s: float


class Mailbox:
    """Buffers in host memory for everything that arrives in a step, allocated once.

    Parameters
    ----------
    devices
        All devices of the cluster.
    """

    def __init__(self, receives: Sequence[Message], devices: Sequence[Driven]) -> None:
        self._devices = devices
        self._receives = tuple(receives)
        self._raw = {turn(m): self._buffer(m) for m in receives}
        self._tensors = {
            turn(m): tensor_of(self._raw[turn(m)], m.spec) for m in receives if is_dense(m.spec)
        }
        self._pending: dict[tuple[int, int], dist.Work] = {}

    def post(self) -> None:
        """Ask for every message of the step, in the order of first use."""
        for message in self._receives:
            source = self._devices[message.source].process
            tag = _tag(message, self._devices)
            work = dist.irecv(self._raw[turn(message)], src=source, tag=tag)
            assert work is not None
            self._pending[turn(message)] = work

    def take(self, message: Message) -> torch.Tensor:
        """Wait for one message; a GPU's kernels find it in the GPU's memory."""
        key, target = turn(message), self._devices[message.target]
        self._pending.pop(key).wait()
        if target.is_gpu:
            raw = self._raw[key].to(target.torch_device, non_blocking=True)
            return tensor_of(raw, message.spec)
        return (
            self._tensors[key] if key in self._tensors else tensor_of(self._raw[key], message.spec)
        )

    def _buffer(self, message: Message) -> torch.Tensor:
        """A GPU copies from pinned memory while the host goes on."""
        pinned = self._devices[message.target].is_gpu
        return torch.empty(wire_bytes(message.spec), dtype=torch.uint8, pin_memory=pinned)


@dataclass(slots=True)
class Courier:
    """Sends in the background, one thread per outgoing channel, first come, first served.

    Attributes
    ----------
    links
        Emulated links by target device.
    devices
        All devices of the cluster.
    """

    links: Mapping[int, ShapedLink]
    devices: Sequence[Driven]
    streams: Streams
    log: list[Sent] = field(default_factory=list)
    _queues: dict[int, queue.SimpleQueue[tuple[Message, Moved] | None]] = field(
        default_factory=dict
    )
    _threads: list[threading.Thread] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)
    _idle: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _handed: int = 0

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Queue a message; returns at once."""
        self._handed += 1
        self._queue(message.target).put((message, self.streams.to_host(wire(tensor, message.spec))))

    def flush(self) -> None:
        """Wait until everything handed over has left."""
        for _ in range(self._handed):
            self._idle.acquire()
        self._handed = 0
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """End the threads."""
        for waiting in self._queues.values():
            waiting.put(None)
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _queue(self, target: int) -> queue.SimpleQueue[tuple[Message, Moved] | None]:
        link = self.links.get(target)
        channel = link.channel if link is not None else -1 - target
        if channel not in self._queues:
            self._queues[channel] = queue.SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(self._queues[channel],), daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return self._queues[channel]

    def _serve(self, waiting: queue.SimpleQueue[tuple[Message, Moved] | None]) -> None:
        precise_sleeps()
        while (item := waiting.get()) is not None:
            try:
                self._carry(*item)
            except BaseException as error:
                self._errors.append(error)
            del item
            self._idle.release()

    def _carry(self, message: Message, moved: Moved) -> None:
        raw = moved.wait()
        start = time.perf_counter() - moved.seconds()  # of the way out of a GPU's memory, too
        link = self.links.get(message.target)
        if link is not None:
            time.sleep(link.wait_s(raw.numel()))
        target = self.devices[message.target].process
        dist.send(raw, dst=target, tag=_tag(message, self.devices))
        self.log.append(
            Sent(message.tag, message.source, message.target, start, time.perf_counter())
        )


def _tag(message: Message, devices: Sequence[Driven]) -> int:
    """A number of its own for a tensor that goes to several devices of one process."""
    return message.tag * len(devices) + message.target
