"""Every message of one process by the way that it goes: gloo, NCCL; how a worker joins the others.

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

Gloo carries tensors between processes through host memory.
A small tensor is sent by the thread that made it: handing it to another one takes longer. A large
one is written to the socket by a thread of its channel, while its maker goes on. Over an emulated
link a small tensor leaves at once and its receiver waits until it is due, which is exact however
busy the sender is; a large one is held back by its sender, until what is left is as long as
sending it takes.

    small, timed    | elements | padding to 8 bytes | due: float64, seconds of the shared clock |
"""

from __future__ import annotations

import datetime
import mmap
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from placewright.runtime.emulation import ShapedLink, precise_sleeps, sleep_until
from placewright.runtime.specs import THROUGH_HOST, Driven, Layout, WorkerSpec
from placewright.runtime.step_record import Timer
from placewright.runtime.wire import (
    Copies,
    Message,
    Moved,
    Streams,
    is_dense,
    message_key,
    tensor_of,
    wire,
    wire_bytes,
)


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


def join(spec: WorkerSpec) -> None:
    """Become a member of the session's process group; returns when all have."""
    dist.init_process_group(
        "gloo",
        store=meeting_point(spec),
        rank=spec.rank,
        world_size=spec.world,
        timeout=_limit(spec),
    )


def nccl_group(spec: WorkerSpec) -> dist.ProcessGroup | None:
    """The processes that NCCL joins, if this is one of them; every process has to call it."""
    ranks = spec.layout.direct_processes
    if not ranks:
        return None
    group = dist.new_group(list(ranks), timeout=_limit(spec), backend=spec.layout.direct)
    return group if spec.rank in ranks else None


def meeting_point(spec: WorkerSpec) -> Any:
    """The store in which the workers of one session, and of no other, find each other."""
    place, limit = urlsplit(spec.rendezvous), _limit(spec)
    if place.scheme == "tcp" and place.hostname is not None and place.port is not None:
        store = _store_at(place.hostname, place.port, spec)
    else:
        store, *_ = next(iter(rendezvous(spec.rendezvous, spec.rank, spec.world, timeout=limit)))
    return PrefixStore(f"placewright/{spec.session}", store)


def _store_at(host: str, port: int, spec: WorkerSpec) -> Any:
    """A store that the first worker opens on this one address.

    By itself a `TCPStore` listens on every interface of the machine, to anybody.
    """
    first = spec.rank == 0
    # The store takes the file descriptor over and closes it.
    listening = socket.create_server((host, port)).detach() if first else None
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, spec.world, first, _limit(spec), master_listen_fd=listening
    )


def _limit(spec: WorkerSpec) -> datetime.timedelta:
    """How long the others are waited for."""
    return datetime.timedelta(seconds=spec.timeout_s)


SMALL_BYTES = 1 << 16

DUE_BYTES = 8

SEND_S, SEND_S_PER_BYTE = 4e-5, 5e-10
"""What a message over loopback takes by itself, until the sender has seen some of its own."""

SENDS_KEPT = 8
"""Latest messages by which a sender knows its own speed."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One transfer as its sender saw it, ``time.perf_counter()`` seconds."""

    tag: int
    source: int
    target: int
    start_s: float
    end_s: float


class GlooReceiver:
    """Buffers in host memory for everything that arrives in a step.

    A step asks for all its messages when it starts, and a large tensor is to take memory only from
    its arrival to its last reader, as the judge counts it. So each large one gets pages of its own
    in every step: the system provides a page when the first byte arrives there, and has it back
    once no tensor refers to the buffer. Small messages, and what a GPU copies from, have buffers
    that stay.

    `devices`: all devices of the cluster.
    `lasting`: let all buffers stay: for streams, where the next sample needs them at once.
    """

    def __init__(
        self, receives: Sequence[Message], devices: Sequence[Driven], *, lasting: bool = False
    ) -> None:
        self._devices = devices
        self._receives = tuple(receives)
        self._timed = {message_key(m): Timed(wire_bytes(m.spec)) for m in receives if says_when(m)}
        # Made once, not in every step: buffers, and the views of dense ones that `take` gives out.
        stay = [m for m in receives if lasting or small(m) or devices[m.target].is_gpu]
        self._raw = {message_key(m): self._buffer(m) for m in stay}
        self._tensors = {
            message_key(m): tensor_of(self._raw[message_key(m)], m.spec)
            for m in stay
            if is_dense(m.spec)
        }
        self._pending: dict[tuple[int, int], tuple[dist.Work, torch.Tensor]] = {}

    def post(self, route: Mapping[int, int] | None = None) -> None:
        """Ask for every message of the step, in the order of first use.

        `route`: devices that send in place of others, whose copies they are.
        """
        route = route or {}
        for message in self._receives:
            source, key = route.get(message.source, message.source), message_key(message)
            source = self._devices[source].process
            timed = self._timed.get(key)
            raw = self._raw.get(key) if timed is None else timed.raw
            if raw is None:
                raw = own_pages(wire_bytes(message.spec))
            work = dist.irecv(raw, src=source, tag=_tag(message, self._devices))
            assert work is not None
            self._pending[key] = work, raw

    def take(self, message: Message) -> torch.Tensor:
        """Wait for one message; a GPU's kernels find it in the GPU's memory."""
        key, target = message_key(message), self._devices[message.target]
        # Popped, so that a large buffer lives no longer than the tensors that are made of it.
        work, raw = self._pending.pop(key)
        work.wait()
        if key in self._timed:
            sleep_until(self._timed[key].due_s)
            raw = self._timed[key].bytes
        if target.is_gpu:
            # The next receive into this pinned buffer is posted after the GPU has been waited for
            # (`settle`), so the copy has ended by then.
            raw = raw.to(target.torch_device, non_blocking=True)
            return tensor_of(raw, message.spec)
        return self._tensors[key] if key in self._tensors else tensor_of(raw, message.spec)

    def _buffer(self, message: Message) -> torch.Tensor:
        """A GPU copies from pinned memory while the host goes on."""
        if message_key(message) in self._timed:
            return self._timed[message_key(message)].bytes
        pinned = self._devices[message.target].is_gpu
        return torch.empty(wire_bytes(message.spec), dtype=torch.uint8, pin_memory=pinned)


@dataclass(slots=True)
class GlooSender:
    """Sends: small tensors at once, others by a thread per channel, first come, first served.

    `links`: emulated links by target device.
    `devices`: all devices of the cluster.
    """

    links: Mapping[int, ShapedLink]
    devices: Sequence[Driven]
    streams: Streams
    log: list[Sent] = field(default_factory=list)
    _queues: dict[int, queue.SimpleQueue[_Queued]] = field(default_factory=dict)
    _errors: list[BaseException] = field(default_factory=list)
    _idle: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _handed: int = 0
    _leaving: deque[dist.Work] = field(default_factory=deque)
    _known: dict[Message, _Outgoing] = field(default_factory=dict)
    _free_s: dict[int, float] = field(default_factory=dict)
    _seen_s_per_byte: deque[float] = field(default_factory=lambda: deque(maxlen=SENDS_KEPT))

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Let a tensor leave; returns before it has arrived."""
        given = self._known.get(message) or self._learn(message)
        # Before the bytes are put in order: a link begins when its sender has the tensor.
        begin_s, due_s = self._held(given)
        moved = self.streams.to_host(wire(tensor, message.spec))
        # Of small messages only, between CPUs: nothing is on its way out of a GPU here.
        if given.timed is not None:
            given.timed.fill(moved.tensor, due_s)
            self._send_now(given, given.timed.raw, begin_s, due_s)
        # By the queue's thread if it still leaves a GPU: this thread would wait for the copy, and
        # start no kernels meanwhile.
        elif given.at_once and moved.arrived is None:
            self._send_now(given, moved.tensor, begin_s, due_s)
        else:
            self._handed += 1
            self._queue(message.target).put(_Queued(given, moved, begin_s, due_s))

    def forget(self) -> None:
        """Other messages will follow."""
        self._known.clear()

    def reap(self, keep: int) -> None:
        """Let go of small messages that have left, all but the latest `keep`.

        A stream never flushes. Its receivers have taken what is so far back, so nothing is waited
        for here.
        """
        while len(self._leaving) > keep:
            self._leaving.popleft().wait()

    def flush(self) -> None:
        """Wait until everything handed over has left."""
        for work in self._leaving:
            work.wait()
        self._leaving.clear()
        # One release per message, whether it was sent or failed: so an error cannot let this wait
        # for ever.
        for _ in range(self._handed):
            self._idle.acquire()
        self._handed = 0
        if self._errors:
            raise self._errors[0]

    def _learn(self, message: Message) -> _Outgoing:
        """What is the same in every step."""
        link = self.links.get(message.target)
        target, tag = self.devices[message.target].process, _tag(message, self.devices)
        timed = Timed(wire_bytes(message.spec)) if says_when(message) else None
        at_once = small(message) and link is None
        given = _Outgoing(message, wire_bytes(message.spec), link, target, tag, at_once, timed)
        self._known[message] = given
        return given

    def _held(self, given: _Outgoing) -> tuple[float, float]:
        """When the message's channel is free for it, and when it delivers: now if none is."""
        now_s, link = time.perf_counter(), given.link
        if link is None:
            return now_s, now_s
        # First come, first served, as the judge counts: known here already, whichever thread sends
        # it. Links with one channel number share it.
        begin_s = max(now_s, self._free_s.get(link.channel, 0.0))
        due_s = self._free_s[link.channel] = begin_s + link.duration_s(given.size)
        return begin_s, due_s

    def _send_now(self, given: _Outgoing, raw: torch.Tensor, begin_s: float, due_s: float) -> None:
        work = dist.isend(raw, dst=given.process, tag=given.tag)
        assert work is not None
        self._leaving.append(work)
        self._log(given.message, begin_s, max(due_s, time.perf_counter()))

    def _queue(self, target: int) -> queue.SimpleQueue[_Queued]:
        link = self.links.get(target)
        # Of its own for each target without an emulated link; below 0, where no link's channel is.
        channel = link.channel if link is not None else -1 - target
        if channel not in self._queues:
            self._queues[channel] = queue.SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(self._queues[channel],), daemon=True
            )
            thread.start()
        return self._queues[channel]

    def _serve(self, waiting: queue.SimpleQueue[_Queued]) -> None:
        precise_sleeps()
        while True:
            item = waiting.get()
            try:
                self._send_queued(item)
            except BaseException as error:
                self._errors.append(error)
            # Else this frame would hold the tensor until the next message comes, and its memory
            # with it.
            del item
            self._idle.release()

    def _send_queued(self, queued: _Queued) -> None:
        raw, given = queued.moved.wait(), queued.given
        begin_s = queued.begin_s
        if given.link is not None:
            # Sending takes time by itself, which ends when the link delivers: it begins so much
            # earlier. By the fastest of the latest: a receiver that was late, or a machine that was
            # busy, makes no link faster than it was asked to be.
            s_per_byte = min(tuple(self._seen_s_per_byte), default=SEND_S_PER_BYTE)
            sleep_until(queued.due_s - SEND_S - given.size * s_per_byte)
        elif queued.moved.arrived is not None:  # of the way out of a GPU's memory, too
            begin_s = time.perf_counter() - queued.moved.seconds()
        start_s = time.perf_counter()
        dist.send(raw, dst=given.process, tag=given.tag)
        end_s = time.perf_counter()
        self._log(given.message, begin_s, end_s)
        if given.size > SMALL_BYTES:
            self._seen_s_per_byte.append(max(0.0, end_s - start_s - SEND_S) / given.size)

    def _log(self, message: Message, begin_s: float, end_s: float) -> None:
        self.log.append(Sent(message.tag, message.source, message.target, begin_s, end_s))


@dataclass(frozen=True, slots=True, eq=False)
class _Outgoing:
    """What is the same of a message in every step.

    `at_once`: its maker's thread sends it, if it is in host memory.
    `timed`: memory in which it travels with the moment at which it is due.
    """

    message: Message
    size: int
    link: ShapedLink | None
    process: int
    tag: int
    at_once: bool
    timed: Timed | None


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    """A message in a queue: when its channel is free for it, and when the link delivers it."""

    given: _Outgoing
    moved: Moved
    begin_s: float
    due_s: float


class Timed:
    """Memory for a tensor's bytes and the moment at which they are due.

    `raw`: all of it, as it is sent and received.
    """

    def __init__(self, size: int) -> None:
        # Rounded up to whole words, and one more: the moment is aligned, behind the elements.
        words = torch.empty(-(-size // DUE_BYTES) + 1, dtype=torch.float64)
        self.raw = words.view(torch.uint8)
        self.bytes = self.raw[:size]
        self._due = words.numpy()

    def fill(self, raw: torch.Tensor, due_s: float) -> None:
        """Copy a tensor's bytes, due then."""
        self.bytes.copy_(raw)
        self._due[-1] = due_s

    @property
    def due_s(self) -> float:
        """When what has arrived is due."""
        return float(self._due[-1])


def own_pages(size: int) -> torch.Tensor:
    """Bytes in pages of their own, which are given back with the last tensor that uses them.

    Raises `MemoryError` where there are none.
    """
    try:
        # Not from the allocator: it may keep what is freed, and then its pages stay with the
        # process.
        pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE)
    except OSError as error:
        raise MemoryError(f"tried to allocate {size} bytes") from error
    return torch.frombuffer(pages, dtype=torch.uint8)


def small(message: Message) -> bool:
    """Whether its maker's thread sends it."""
    return wire_bytes(message.spec) <= SMALL_BYTES


def says_when(message: Message) -> bool:
    """Whether the moment at which it is due travels with it."""
    return message.way == "timed" and small(message)


def _tag(message: Message, devices: Sequence[Driven]) -> int:
    """A number of its own for a tensor that goes to several devices of one process."""
    return message.tag * len(devices) + message.target
