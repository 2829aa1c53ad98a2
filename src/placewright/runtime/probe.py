"""Quick probes of a worker's own device and of its links, for what the steps do not show."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from placewright.graph.graph import TensorSpec
from placewright.runtime.emulation import Stretch
from placewright.runtime.messages import GlooReceiver, GlooSender
from placewright.runtime.step_record import timer_of
from placewright.runtime.wire import Message

WORK_S = 0.03
"""Seconds of the work at full speed: three periods of a CPU quota."""

SMALL, LARGE = 1, 1 << 17
"""Bytes of the two messages that a link is timed with."""

REPEATS = 3

LinkSeconds = dict[int, float]
"""Round trip by bytes of the message."""


class SpeedProbe:
    """A fixed piece of work whose duration, over the first one's, is how slow the device is."""

    def __init__(self, torch_device: str = "cpu") -> None:
        self._matrix = torch.full((128, 128), 1e-3, device=torch_device)
        self._timer = timer_of(torch_device)
        self._multiply(1)
        start = time.perf_counter()
        self._multiply(20)
        each = (time.perf_counter() - start) / 20
        self.count = max(1, round(WORK_S / each))

    def seconds(self, stretch: Stretch | None) -> float:
        """Wall seconds of the work on the device as it is emulated."""
        start, cpu = time.perf_counter(), time.thread_time()
        self._multiply(self.count)
        spent = time.perf_counter() - start
        extra = 0.0 if stretch is None else (stretch.factor - 1.0) * (time.thread_time() - cpu)
        return spent + extra

    def _multiply(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self._matrix, self._matrix)
        self._timer.settle()


def probe_links(
    pairs: Sequence[tuple[int, int]], process: int, sender: GlooSender
) -> dict[tuple[int, int], LinkSeconds]:
    """Round trips of the pairs of devices that start at this process; each gets the same list."""
    found = {}
    for source, target in pairs:
        processes = [sender.devices[device].process for device in (source, target)]
        if process in processes:
            # In the order of the list everywhere, so that both ends of a pair are at it at the same
            # time.
            here = (source, target)[processes.index(process)]
            seconds = link_seconds(here, source, target, sender)
            if here == source:
                found[source, target] = seconds
    return found


def link_seconds(here: int, source: int, target: int, sender: GlooSender) -> LinkSeconds:
    """Least round trip of a small and of a large message, each answered by a small one.

    Both ends call it, each as its own device `here`; what `source` finds counts.

    Returns
    -------
    Seconds by bytes of the message.
    """
    found: LinkSeconds = {}
    for tag, size in enumerate((SMALL, LARGE)):
        there = Message(tag, "probe", _bytes(size), source, target)
        back = Message(tag, "answer", _bytes(SMALL), target, source)
        incoming, outgoing = (back, there) if here == source else (there, back)
        times = []
        for _ in range(REPEATS):
            receiver = GlooReceiver([incoming], sender.devices)
            receiver.post()
            start = time.perf_counter()
            if here == target:
                receiver.take(incoming)
            sender.send(outgoing, torch.zeros(outgoing.spec.shape, dtype=torch.uint8))
            sender.flush()
            if here == source:
                receiver.take(incoming)
            times.append(time.perf_counter() - start)
        found[size] = min(times)
    return found


def _bytes(size: int) -> TensorSpec:
    return TensorSpec((size,), "uint8", (1,))


def link_line(seconds: LinkSeconds) -> tuple[float, float]:
    """Latency and seconds per byte from what `link_seconds` found."""
    per_byte = max(0.0, seconds[LARGE] - seconds[SMALL]) / (LARGE - SMALL)
    return seconds[SMALL] / 2, per_byte
