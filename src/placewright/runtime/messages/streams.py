"""A second stream on every GPU of a process, on which tensors travel while the GPU computes.

Kernels run on the stream that PyTorch uses by default. What leaves waits on the second stream
for what was launched before; what has arrived is waited for by the stream that computes, and
never by the host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from placewright.runtime.messages.layout import Driven
from placewright.runtime.messages.wire import Message, message_key, tensor_of, wire


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor on its way: its place at the target, and what happens when it is there.

    `arrived`: ``None`` where it is there already.
    `span`: when the copy began and ended, as marks of the source's timer.
    """

    tensor: torch.Tensor
    arrived: torch.cuda.Event | None = None
    span: tuple[Any, Any] = (0.0, 0.0)

    def wait(self) -> torch.Tensor:
        """The tensor for the host; waits until it is there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.tensor

    def seconds(self) -> float:
        """How long the copy took, once it is there."""
        began, ended = self.span
        return float(ended - began if self.arrived is None else 1e-3 * began.elapsed_time(ended))

    def join(self) -> torch.Tensor:
        """The tensor for its GPU, whose coming kernels wait until it is there."""
        if self.arrived is not None:
            stream = torch.cuda.current_stream(self.tensor.device)
            stream.wait_event(self.arrived)
            # It was allocated on the second stream, and is read on this one from here on.
            self.tensor.record_stream(stream)
        return self.tensor


class Streams:
    """The second streams of a process.

    `torch_devices`: the process's devices; those that are no GPUs have no streams.
    """

    def __init__(self, torch_devices: Sequence[str]) -> None:
        gpus = sorted({name for name in torch_devices if name.startswith("cuda")})
        self._side = {torch.device(name): torch.cuda.Stream(name) for name in gpus}  # type: ignore[no-untyped-call]

    def to_host(self, tensor: torch.Tensor) -> Moved:
        """Start copying to host memory; a tensor of the host stays where it is."""
        if tensor.device not in self._side:
            return Moved(tensor)
        side = self._side[tensor.device]
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        # The kernels that make the tensor may not have begun; later ones do not delay the copy.
        side.wait_stream(torch.cuda.current_stream(tensor.device))
        began = _timed(side)
        with torch.cuda.stream(side):
            host.copy_(tensor, non_blocking=True)
            # Without it the allocator may give the tensor's memory to a kernel of the other stream,
            # as soon as Python drops the tensor, while the copy still reads it.
            tensor.record_stream(side)
        ended = _timed(side)
        return Moved(host, ended, (began, ended))

    def copy(self, tensor: torch.Tensor, target: torch.device) -> Moved:
        """Start copying to `target`; never shares memory with `tensor`."""
        if tensor.device in self._side and target in self._side and target != tensor.device:
            return self._between(tensor, target)
        began = time.perf_counter()
        moved = tensor.to(target, copy=True)
        return Moved(moved, span=(began, time.perf_counter()))

    def _between(self, tensor: torch.Tensor, target: torch.device) -> Moved:
        """From one GPU to another while both compute."""
        here, there = self._side[tensor.device], self._side[target]
        here.wait_stream(torch.cuda.current_stream(tensor.device))
        began = _timed(here)
        # PyTorch copies on the current stream of the source and lets that of the target wait: both
        # are the second ones here, or the copy would wait for the target's kernels.
        with torch.cuda.stream(there), torch.cuda.stream(here):
            moved = tensor.to(target, non_blocking=True, copy=True)
            tensor.record_stream(here)
        ended = _timed(here)
        # The arrival is an event of the target's stream; the span is of the source's, which has a
        # clock of its own.
        return Moved(moved, there.record_event(), (began, ended))


def _timed(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """A mark behind what was launched on the stream so far."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


class Copies:
    """Copies that were started and not taken yet.

    `devices`: all devices of the cluster.
    `log`: messages of the step, with the marks of their sources' timers.
    """

    def __init__(self, devices: Sequence[Driven], streams: Streams) -> None:
        self._places = [torch.device(d.torch_device) for d in devices]
        self._streams = streams
        self._moved: dict[tuple[int, int], Moved] = {}
        self.log: list[tuple[Message, tuple[Any, Any]]] = []

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Start the copy; returns at once between GPUs."""
        moved = self._streams.copy(wire(tensor, message.spec), self._places[message.target])
        self._moved[message_key(message)] = moved
        self.log.append((message, moved.span))

    def take(self, message: Message) -> torch.Tensor:
        """The copy; kernels that are started afterwards find it complete."""
        return tensor_of(self._moved.pop(message_key(message)).join(), message.spec)
