"""A tensor as bytes on the wire and back, in the layout that eager would have; copies of GPUs.

Some kernels round differently on another layout, so a tensor arrives with the strides that it
has at its producer.

Tensors travel on a second stream of every GPU while it computes.
Kernels run on the stream that PyTorch uses by default. What leaves waits on the second stream
for what was launched before; what has arrived is waited for by the stream that computes, and
never by the host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from placewright.errors import RunError
from placewright.graph.graph import TensorSpec
from placewright.runtime.specs import Driven, Way


@dataclass(frozen=True, slots=True)
class Message:
    """One tensor on its way from one device to another, once per step.

    ``tag`` is the tensor's position in the graph, equal on both sides; ``source`` and ``target``
    are devices.
    """

    tag: int
    value: str
    spec: TensorSpec
    source: int
    target: int
    way: Way = "gloo"


def message_key(message: Message) -> tuple[int, int]:
    """Its place among the messages of one producer, at both ends."""
    return message.tag, message.target


@cache
def wire_bytes(spec: TensorSpec) -> int:
    """Bytes on the wire: those of the elements, at least one."""
    count = 1
    for extent in spec.shape:
        count *= extent
    return max(1, count * torch.empty(0, dtype=_dtype(spec)).element_size())


def wire(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor's bytes in memory order, in the layout that `spec` promises.

    Shares memory with `tensor` where that has the layout already.

    Raises `RunError` where it has another shape or dtype: the other end would take its bytes for
    something else.
    """
    _check_as_promised(tensor, spec)
    if tensor.numel() == 0:
        return torch.zeros(1, dtype=torch.uint8, device=tensor.device)
    tensor = tensor.detach()
    if not is_dense(spec):
        # The elements in row-major order, without gaps and each repeated element in full: `_spread`
        # undoes it.
        flat = tensor.contiguous()
    elif _same_layout(tensor, spec):
        flat = tensor
    else:
        flat = tensor.new_empty_strided(spec.shape, spec.stride).copy_(tensor)
    # A dense tensor fills its memory without gaps, so in memory order its bytes are one run,
    # whatever the strides. (A reshape would put them in row-major order.)
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


def tensor_of(raw: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor in a buffer of bytes: a view where its layout has neither gaps nor overlap."""
    shaped = _shaped(raw, spec)
    return shaped if is_dense(spec) else _spread(shaped, spec)


def _check_as_promised(tensor: torch.Tensor, spec: TensorSpec) -> None:
    if tensor.dtype != _dtype(spec) or tuple(tensor.shape) != spec.shape:
        raise RunError(
            "an operator made another tensor than its shape rule gives",
            where="a tensor on its way to another device",
            by=f"{tuple(tensor.shape)} {tensor.dtype}, the program has {spec.shape} {spec.dtype}",
            hint="keep the operator and those that read its result on one device, and report the "
            "model",
        )


@cache
def is_dense(spec: TensorSpec) -> bool:
    """Whether the strides are a permutation of a contiguous layout, without gaps or overlap."""
    expected = 1
    pairs = zip(spec.stride, spec.shape, strict=True)
    # From the innermost dimension outwards: each must step over all that is inside of it. The
    # stride of a dimension of one element says nothing.
    for stride, extent in sorted((s, e) for s, e in pairs if e > 1):
        if stride != expected:
            return False
        expected = stride * extent
    return True


@cache
def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


def _same_layout(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    pairs = zip(tensor.stride(), spec.stride, spec.shape, strict=True)
    return all(real == promised for real, promised, extent in pairs if extent > 1)


def _shaped(raw: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    dtype = _dtype(spec)
    if 0 in spec.shape:
        return torch.empty(spec.shape, dtype=dtype, device=raw.device)
    flat = raw.view(dtype)
    return flat.as_strided(spec.shape, spec.stride) if is_dense(spec) else flat.view(spec.shape)


def _spread(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A copy with strides that have gaps or overlap (an expanded tensor)."""
    # Repeated elements once: their stride of 0 repeats them again without memory.
    once = [min(1, e) if s == 0 else e for e, s in zip(spec.shape, spec.stride, strict=True)]
    last = sum((e - 1) * s for e, s in zip(once, spec.stride, strict=True))
    buffer, elements = tensor.new_empty(last + 1), tensor.as_strided(once, tensor.stride())
    # Not `copy_`, which fake tensors of GPUs that are not here refuse.
    buffer = torch.as_strided_scatter(buffer, elements, once, spec.stride)
    return buffer.as_strided(spec.shape, spec.stride)


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
