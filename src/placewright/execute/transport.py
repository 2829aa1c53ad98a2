"""Tensors between workers over torch.distributed, in the layout that eager would have."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from placewright.execute.emulation import ShapedLink, precise_sleeps
from placewright.execute.partition import Message
from placewright.graph.graph import TensorSpec


@dataclass(frozen=True, slots=True)
class Sent:
    """One transfer as its sender saw it, ``time.perf_counter()`` seconds."""

    tag: int
    target: int
    start_s: float
    end_s: float


class Mailbox:
    """Buffers for everything that arrives in a step, allocated once.

    A buffer has the strides that the tensor has at its producer: some kernels round
    differently on another layout. Messages for a GPU are received in host memory.
    """

    def __init__(self, receives: Sequence[Message], device: str = "cpu") -> None:
        self._device = device
        self._receives = tuple(receives)
        self._raw = {m.tag: torch.empty(wire_bytes(m.spec), dtype=torch.uint8) for m in receives}
        self._tensors = {m.tag: _shaped(self._raw[m.tag], m.spec) for m in receives}
        self._pending: dict[int, dist.Work] = {}

    def post(self) -> None:
        """Ask for every message of the step, in the order of first use."""
        for message in self._receives:
            work = dist.irecv(self._raw[message.tag], src=message.source, tag=message.tag)
            assert work is not None
            self._pending[message.tag] = work

    def take(self, message: Message) -> torch.Tensor:
        """Wait for one message."""
        self._pending.pop(message.tag).wait()
        tensor = self._tensors[message.tag]
        tensor = tensor if _is_dense(message.spec) else _spread(tensor, message.spec)
        return tensor.to(self._device)


@dataclass(slots=True)
class Courier:
    """Sends in the background, one thread per outgoing channel, first come, first served."""

    links: Mapping[int, ShapedLink]
    log: list[Sent] = field(default_factory=list)
    _queues: dict[int, queue.SimpleQueue[tuple[Message, torch.Tensor] | None]] = field(
        default_factory=dict
    )
    _threads: list[threading.Thread] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)
    _idle: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _handed: int = 0

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Queue a message; returns at once."""
        self._handed += 1
        self._queue(message.target).put((message, _wire(tensor, message.spec)))

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

    def _queue(self, target: int) -> queue.SimpleQueue[tuple[Message, torch.Tensor] | None]:
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

    def _serve(self, waiting: queue.SimpleQueue[tuple[Message, torch.Tensor] | None]) -> None:
        precise_sleeps()
        while (item := waiting.get()) is not None:
            try:
                self._carry(*item)
            except BaseException as error:
                self._errors.append(error)
            del item
            self._idle.release()

    def _carry(self, message: Message, wire: torch.Tensor) -> None:
        start = time.perf_counter()
        link = self.links.get(message.target)
        if link is not None:
            time.sleep(link.wait_s(wire.numel()))
        dist.send(wire, dst=message.target, tag=message.tag)
        self.log.append(Sent(message.tag, message.target, start, time.perf_counter()))


def wire_bytes(spec: TensorSpec) -> int:
    """Bytes on the wire: those of the elements, at least one."""
    count = 1
    for extent in spec.shape:
        count *= extent
    return max(1, count * torch.empty(0, dtype=_dtype(spec)).element_size())


def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


def _is_dense(spec: TensorSpec) -> bool:
    """Whether the strides are a permutation of a contiguous layout, without gaps or overlap."""
    expected = 1
    pairs = zip(spec.stride, spec.shape, strict=True)
    for stride, extent in sorted((s, e) for s, e in pairs if e > 1):
        if stride != expected:
            return False
        expected = stride * extent
    return True


def _wire(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor's bytes in memory order, in the layout that `spec` promises."""
    if tensor.numel() == 0:
        return torch.zeros(1, dtype=torch.uint8)
    tensor = tensor.detach()
    if not _is_dense(spec):
        flat = tensor.contiguous()
    elif _same_layout(tensor, spec):
        flat = tensor
    else:
        flat = tensor.new_empty_strided(spec.shape, spec.stride).copy_(tensor)
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).cpu()


def _same_layout(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    pairs = zip(tensor.stride(), spec.stride, spec.shape, strict=True)
    return all(real == promised for real, promised, extent in pairs if extent > 1)


def _shaped(raw: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A view of the buffer as the tensor."""
    dtype = _dtype(spec)
    if 0 in spec.shape:
        return torch.empty(spec.shape, dtype=dtype)
    flat = raw.view(dtype)
    return flat.as_strided(spec.shape, spec.stride) if _is_dense(spec) else flat.view(spec.shape)


def _spread(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A copy with strides that have gaps or overlap (an expanded tensor)."""
    if 0 in spec.stride:
        narrow = [slice(0, 1) if s == 0 else slice(None) for s in spec.stride]
        return tensor[tuple(narrow)].expand(spec.shape)
    return torch.empty_strided(spec.shape, spec.stride, dtype=tensor.dtype).copy_(tensor)
