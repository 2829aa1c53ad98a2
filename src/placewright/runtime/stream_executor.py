"""The stream of one process: several samples in flight on its devices.

Threads of a worker while a stream is open:

    main        takes orders: hands samples over, gives what is done back
    executor    does segments: of those that have all they read, the one of the oldest sample
    one per bundle of messages (`Bundle`): waits for them, sample after sample
    one per link of the sender, as in steps

All state is guarded by one condition. Segments do samples in order, so a few counters say what can
run: segment k may do sample n where ``k.done == n`` and n is open, its sources have done n, its
bundles have arrived n + 1 times, and the segment that gates it has done n - 1.

A process of a stage with copies gets some of the samples: n counts those. Tags and buffers go by
the sample's number in the whole stream, which both ends of a message know, and its route says to
which copy a message goes and from which one it comes.

Segments: runs of operators of one device that a stream executes without waiting in between.

A step waits for a message where an operator first reads it. A stream waits once per segment, for
all messages that any of its operators reads, so that the device can work on another sample
meanwhile. With several samples in flight every message needs buffers and a tag of its own per
sample: a sample has a *slot*, its number modulo the window, and the tag of a message in slot s is

    tag of the step's message * window + s

A slot is used again only once the sample before has left every device, so no two samples in flight
share a tag.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

import torch
from safetensors.torch import load, save

from placewright.runtime.emulation import Stretch
from placewright.runtime.messages import GlooReceiver
from placewright.runtime.specs import THROUGH_HOST
from placewright.runtime.step.devices import PlacedDevices, laid_out, storable
from placewright.runtime.step.partition import Part, Step
from placewright.runtime.step.sequence import CompiledShare, Share
from placewright.runtime.step.slots import Registers, Slot, call
from placewright.runtime.wire import Message, message_key

KEPT_SPANS = 4096
"""Spans of segments that a worker keeps until they are fetched."""


Route = tuple[tuple[int, int], ...]
"""By first device of a stage, the one that does a sample."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample that a stream takes in.

    Attributes
    ----------
    index
        Among those of this process.
    number
        In the stream.
    inputs
        Program inputs as safetensors; empty for those that were loaded.
    route
        Which copies have it; empty where no stage has any.
    """

    index: int
    number: int
    inputs: bytes = b""
    route: Route = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """What one process did of a sample; ``time.perf_counter()`` seconds of its machine.

    `outputs`: those made here as safetensors; empty if there are none or they were not asked for.
    """

    index: int
    start_s: float
    end_s: float
    outputs: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """What a process says each time it is asked.

    Attributes
    ----------
    finished
        Samples that are done here and were not reported before.
    spans
        Device, segment of that device, sample, start and end of what ran; where it was asked for.
    """

    finished: tuple[Finished, ...] = ()
    spans: tuple[tuple[int, int, int, float, float], ...] = ()


@dataclass(slots=True)
class _InFlight:
    """A sample on this process's devices; registers by part, what has arrived by segment."""

    index: int
    slot: int
    route: Mapping[int, int]
    registers: list[Registers]
    received: dict[int, list[tuple[int, torch.Tensor]]] = field(default_factory=dict)
    start_s: float = 0.0


class StreamExecutor:
    """Executes the loaded parts of a process for one sample after the other.

    Parameters
    ----------
    lengths
        Operators of every segment, by part.
    window
        Most samples in flight; the caller admits no more.
    deliver
        Whether outputs are given back.
    watched
        Whether spans are.
    """

    def __init__(
        self,
        devices: PlacedDevices,
        lengths: Sequence[Sequence[int]],
        window: int,
        *,
        deliver: bool,
        watched: bool,
        threads: int,
        stretch: Stretch | None,
    ) -> None:
        self._devices, self._window = devices, window
        self._deliver, self._threads, self._stretch = deliver, threads, stretch
        self._share, self._compiled = devices.share, devices.compiled
        self.segments = segments_of(self._share, self._compiled, lengths, window)
        self._names = _names(self.segments, [p.device for p in self._share.parts])
        self._last = _last_of_each_part(self.segments)
        self._exchange = devices.exchange
        self._receivers = self._make_receivers()
        self._condition = threading.Condition()
        self._waiting: deque[Sample] = deque()
        self._open: dict[int, _InFlight] = {}
        self._done = 0
        self._finished: list[Finished] = []
        self._spans: deque[tuple[int, int, int, float, float]] | None = (
            deque(maxlen=KEPT_SPANS) if watched else None
        )
        self._error: BaseException | None = None
        self._closed = False
        self._per_sample = sum(len(s) for segment in self.segments for s in segment.sends)
        self._queues: list[tuple[Bundle, SimpleQueue[int | None]]] = [
            (bundle, SimpleQueue()) for segment in self.segments for bundle in segment.bundles
        ]
        self._threads_up = [self._start(self._execute)]
        # One thread each: a wait for a message holds up nobody who has what it needs.
        for bundle, queue in self._queues:
            self._threads_up.append(self._start(self._receive, bundle, queue))

    def turn(self, samples: Sequence[Sample], until: int, wait_s: float) -> StreamProgress:
        """Take samples in; what was done since the last call.

        Returns once sample `until` is done here, or after `wait_s` seconds.

        Raises `RuntimeError`: a segment or a message failed; the error is its cause.
        """
        with self._condition:
            self._waiting.extend(samples)
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: self._done > until or self._error is not None, timeout=wait_s
            )
            if self._error is not None:
                raise RuntimeError("the stream broke off") from self._error
            finished, self._finished = tuple(self._finished), []
            spans = tuple(self._spans or ())
            if self._spans is not None:
                self._spans.clear()
        return StreamProgress(finished, spans)

    def close(self) -> None:
        """End the threads; every sample must be done."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for _, queue in self._queues:
            queue.put(None)
        for thread in self._threads_up:
            thread.join()
        self._exchange.flush()
        self._clear_logs()
        self._exchange.sender.forget()

    def _make_receivers(self) -> list[GlooReceiver]:
        """By slot of the window."""
        messages = [m for segment in self.segments for b in segment.bundles for _, m in b.messages]
        devices = self._exchange.layout.devices
        return [
            GlooReceiver(
                [m[s] for m in messages if m[s].way in THROUGH_HOST], devices, lasting=True
            )
            for s in range(self._window)
        ]

    def _start(self, target: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(target, *arguments), daemon=True)
        thread.start()
        return thread

    def _guarded(self, target: object, *arguments: object) -> None:
        """Keep what a thread raised for the next order."""
        try:
            assert callable(target)
            target(*arguments)
        except BaseException as error:
            with self._condition:
                self._error = self._error or error
                self._condition.notify_all()

    # The executor's thread.

    @torch.no_grad()
    def _execute(self) -> None:
        torch.set_num_threads(self._threads)
        first = self._exchange.layout.devices[self._share.parts[0].device].torch_device
        if first.startswith("cuda"):
            torch.cuda.set_device(first)
        while (ready := self._next()) is not None:
            self._run(*ready)

    def _next(self) -> tuple[int, Segment, _InFlight] | None:
        """Wait for a segment that can run, the oldest sample's first; ``None`` at the end."""
        with self._condition:
            while True:
                self._admit()
                if self._closed:
                    return None
                ready = [
                    (segment.done, k) for k, segment in enumerate(self.segments) if self._can(k)
                ]
                if ready:
                    index, k = min(ready)
                    # The oldest sample first: it is the one that the caller waits for, and its slot
                    # is free soonest.
                    return k, self.segments[k], self._open[index]
                self._condition.wait()

    def _can(self, k: int) -> bool:
        segment = self.segments[k]
        n = segment.done
        return (
            n in self._open
            and all(self.segments[s].done > n for s in segment.sources)
            and all(bundle.arrived > n for bundle in segment.bundles)
            and (segment.gated_by < 0 or self.segments[segment.gated_by].done >= n)
        )

    def _admit(self) -> None:
        """Open samples whose slots are free: post their receives, put their inputs in place."""
        while self._waiting and self._waiting[0].index < self._done + self._window:
            sample = self._waiting.popleft()
            # A copy of the references: state is shared with other samples, results are this
            # sample's own.
            registers = [list(part.registers) for part in self._compiled.parts]
            slot, route = sample.number % self._window, dict(sample.route)
            self._open[sample.index] = _InFlight(sample.index, slot, route, registers)
            if sample.inputs:
                self._put(load(sample.inputs), registers)
            # Before any thread is told of the sample: they take from what is posted.
            self._receivers[slot].post(route)
            for _, queue in self._queues:
                queue.put(sample.index)
            # Where this process has no part of the sample, it is done as soon as it is open.
            self._finish()

    def _put(self, inputs: Mapping[str, torch.Tensor], registers: list[Registers]) -> None:
        for part, own, values in zip(
            self._share.parts, self._compiled.parts, registers, strict=True
        ):
            place = self._exchange.layout.devices[part.device].torch_device
            for item in part.inputs:
                if item.name in inputs:
                    made = laid_out(inputs[item.name], item.spec).to(place)
                    values[own.index[item.name]] = made

    def _run(self, k: int, segment: Segment, sample: _InFlight) -> None:
        """Do one segment of one sample."""
        exchange, stretch = self._exchange, self._stretch
        registers, slot_of = sample.registers[segment.part], sample.slot
        start_s = time.perf_counter()
        sample.start_s = sample.start_s or start_s
        for register, tensor in sample.received.pop(k, ()):
            registers[register] = tensor
        for register, messages in segment.copied:
            registers[register] = exchange.copies.take(messages[slot_of])
        if stretch is not None:
            stretch.begin()
        for slot, sends in zip(segment.slots, segment.sends, strict=True):
            call(slot, registers)
            if sends:
                if stretch is not None:
                    stretch.pay()
                for register, messages in sends:
                    message = _routed(messages[slot_of], sample.route)
                    exchange.send(message, registers[register])
                if stretch is not None:
                    stretch.begin()
            for register in slot.frees:
                registers[register] = None
        if stretch is not None:
            stretch.pay()
        self._compiled.timers[segment.part].settle()
        # Behind `settle`: a GPU has made all that the next segment, the outputs and the spans speak
        # of.
        end_s = time.perf_counter()
        # So many messages back is a sample whose slot was free again: its receivers have taken all
        # of it.
        exchange.sender.reap(self._per_sample * self._window)
        self._clear_logs()
        with self._condition:
            # The span and the count in one hold of the lock: whoever hears that a sample is done
            # has its spans.
            segment.done += 1
            if self._spans is not None:
                self._spans.append((*self._names[k], sample.index, start_s, end_s))
            self._finish()

    def _finish(self) -> None:
        """Report samples that every part has done."""
        while self._done in self._open and all(
            self.segments[k].done > self._done for k in self._last
        ):
            sample = self._open.pop(self._done)
            outputs = self._outputs(sample) if self._deliver else {}
            data = save(storable(outputs)) if outputs else b""
            end_s = time.perf_counter()
            self._finished.append(Finished(sample.index, sample.start_s or end_s, end_s, data))
            self._done += 1
            self._condition.notify_all()

    def _outputs(self, sample: _InFlight) -> dict[str, torch.Tensor]:
        pairs = zip(self._compiled.parts, sample.registers, strict=True)
        return {
            name: values[k]
            for part, values in pairs
            for name, k in part.outputs.items()
            if values[k] is not None
        }

    def _clear_logs(self) -> None:
        self._exchange.sender.log.clear()
        self._exchange.copies.log.clear()

    # The threads of bundles.

    def _receive(self, bundle: Bundle, queue: SimpleQueue[int | None]) -> None:
        while (index := queue.get()) is not None:
            # Without the lock: no sample is closed before all its bundles have arrived.
            slot = self._open[index].slot
            receiver = self._receivers[slot]
            tensors = [(register, receiver.take(m[slot])) for register, m in bundle.messages]
            with self._condition:
                self._open[index].received.setdefault(bundle.segment, []).extend(tensors)
                bundle.arrived += 1
                self._condition.notify_all()


def _routed(message: Message, route: Mapping[int, int]) -> Message:
    """The message to the copy that has the sample."""
    target = route.get(message.target, message.target)
    return message if target == message.target else replace(message, target=target)


def _last_of_each_part(segments: Sequence[Segment]) -> list[int]:
    return list({segment.part: k for k, segment in enumerate(segments)}.values())


def _names(segments: Sequence[Segment], devices: Sequence[int]) -> list[tuple[int, int]]:
    """Device, and position on that device, of every segment."""
    seen: dict[int, int] = {}
    found = []
    for segment in segments:
        found.append((devices[segment.part], seen.setdefault(segment.part, 0)))
        seen[segment.part] += 1
    return found


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
    return any(value in changing for value in instruction.reads())
