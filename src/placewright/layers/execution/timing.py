"""Time the layers of a model on one worker: forward and backward passes, split ones too.

Times are CPU seconds times the worker's slowdown (wall time over CPU time under a CPU quota, or
the factor by which it is emulated): under a CPU quota a short call either runs at full speed or
waits a period, so that the wall time of one call says nothing. On a GPU they are wall times.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from placewright.layers.execution.layer_module import LayerModule, LayerProgram, TensorModule
from placewright.layers.execution.layouts import Peers, differentiable
from placewright.numerics.arrays import FloatArray
from placewright.runtime.emulation import Stretch

OPTIMIZER_STEPS = 3


@dataclass(frozen=True, slots=True, eq=False)
class LayerTimes:
    """Costs of a chain of layers on one worker, on one number of samples.

    Attributes
    ----------
    forward_s, backward_s
        Shape (n,): NaN where the layer cannot be split so.
    saved_bytes
        Shape (n,): kept between the passes, parameters apart.
    tensor_bytes
        Shape (n, 2): of collectives in each pass, as all-reduces of so many bytes.
    elements
        Shape (n,): parameter elements held.
    optimizer_s
        Of a step over all parameters.
    passes_bytes
        Resident memory that passes over all layers, one after another, add to weights and
        gradients; NaN where it was not measured.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    saved_bytes: FloatArray
    tensor_bytes: FloatArray
    elements: FloatArray
    optimizer_s: float
    passes_bytes: float = np.nan


class CountedPeers(Peers):
    """Other workers that are not there: collectives are counted and cost nothing."""

    __slots__ = ("backward", "sent")

    def __init__(self, degree: int) -> None:
        super().__init__(None, 0, (1,) * degree)
        self.sent = [0.0, 0.0]
        self.backward = False

    def all_gather(self, part: Tensor, sizes: Sequence[int], dim: int) -> Tensor:
        """The own part, repeated; counted as half of an all-reduce."""
        whole = part.new_zeros([*part.shape[:dim], sum(sizes), *part.shape[dim + 1 :]])
        whole.narrow(dim, 0, part.shape[dim]).copy_(part)
        self.sent[self.backward] += 0.5 * whole.numel() * whole.element_size()
        return whole

    def all_reduce(self, value: Tensor) -> Tensor:
        """The value itself."""
        self.sent[self.backward] += value.numel() * value.element_size()
        return value


class LayerTimer:
    """Runs a chain of layers in place, layer by layer, on one number of samples.

    Every `round` runs all layers once, so that rounds of several chains can be taken in turns: a
    machine that is slow for a second slows one round of each.

    Parameters
    ----------
    state
        Parameters, buffers and constants by name, on the device.
    slowdown
        Wall seconds per CPU second.
    programs, feeds
        The layers, and the batch that they read.
    degree
        Workers that a layer is split over.
    shared
        Parameters that several layers use.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        device: torch.device,
        slowdown: float,
        programs: Sequence[LayerProgram],
        feeds: Mapping[str, Tensor],
        degree: int = 1,
        shared: frozenset[str] = frozenset(),
    ) -> None:
        self.state, self.device, self.slowdown = state, device, slowdown
        self.programs, self.feeds = programs, feeds
        self.peers = CountedPeers(degree)
        self.modules = [self._module(p, degree, shared) for p in programs]
        n = len(programs)
        self.saved, self.sent = np.full(n, np.nan), np.zeros((n, 2))
        self.forward: list[FloatArray] = []
        self.backward: list[FloatArray] = []
        self.warm = False

    def round(self) -> None:
        """Run every layer forwards and backwards; what the first round takes does not count."""
        n = len(self.programs)
        forward, backward = np.zeros(n), np.zeros(n)
        values: dict[str, Tensor] = {}
        counted: set[int] = set()  # memory of `values` that an earlier layer keeps already
        for k, (program, module) in enumerate(zip(self.programs, self.modules, strict=True)):
            given = [values[v].detach() for v in program.inputs]
            for x in given:
                if differentiable(x.dtype):
                    x.requires_grad_()
            self.peers.sent, self.peers.backward = [0.0, 0.0], False
            with _Saved(module, counted) as kept:
                began = self.clock()
                made = module(*given, feeds=self.feeds)
                forward[k] = self.clock() - began
            values.update(zip(program.outputs, made, strict=True))
            ends_of = (_memory_of(x) for x in (*given, *made))
            counted |= {at for at in ends_of if at in kept.seen}
            ends = [m for m in made if m.requires_grad]
            gradients = [torch.ones_like(m) for m in ends]
            self.peers.backward = True
            began = self.clock()
            torch.autograd.backward(ends, gradients)
            backward[k] = self.clock() - began
            self.saved[k], self.sent[k] = kept.bytes, self.peers.sent
        if self.warm:
            self.forward.append(forward)
            self.backward.append(backward)
        self.warm = True

    def passes_bytes(self) -> float:
        """See `LayerTimes.passes_bytes`: to be asked before rounds of larger sizes."""
        if self.device.type != "cpu":
            return np.nan
        self.round()  # makes gradients
        return _passes_bytes(self.programs, self.modules, self.feeds)

    def times(
        self,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        passes_bytes: float = np.nan,
    ) -> LayerTimes:
        """What the rounds said; and what an optimizer step takes."""
        return LayerTimes(
            np.median(self.forward, axis=0) * self.slowdown,
            np.median(self.backward, axis=0) * self.slowdown,
            self.saved,
            self.sent,
            self.elements,
            self._optimizer_s(optimizer),
            passes_bytes,
        )

    @property
    def elements(self) -> FloatArray:
        """See `LayerTimes.elements`."""
        held = (sum(p.numel() for p in module.parameters()) for module in self.modules)
        return np.fromiter(held, dtype=np.float64)

    @property
    def round_s(self) -> float:
        """Median seconds of all passes in a round."""
        each = np.sum(self.forward, axis=1) + np.sum(self.backward, axis=1)
        return float(np.median(each)) * self.slowdown

    def _module(self, program: LayerProgram, degree: int, shared: frozenset[str]) -> LayerModule:
        if degree == 1:
            return LayerModule(program, self.state)
        made = TensorModule(program, self.state, self.peers, shared)
        return LayerModule(program, self.state) if made.split.refusal else made

    def clock(self) -> float:
        """What a pass takes is the difference of two readings."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.thread_time()

    def _optimizer_s(self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> float:
        held = (p for m in self.modules for p in m.parameters() if p.grad is not None)
        parameters = list(dict.fromkeys(held))
        if not parameters:
            return 0.0
        optimizer = make(parameters)
        before = [p.detach().clone() for p in parameters]
        times = []
        for _ in range(OPTIMIZER_STEPS):
            began = self.clock()
            optimizer.step()
            times.append(self.clock() - began)
        with torch.no_grad():
            for p, value in zip(parameters, before, strict=True):
                p.copy_(value)
                p.grad = None
        return float(np.median(times[1:])) * self.slowdown


def _passes_bytes(
    programs: Sequence[LayerProgram], modules: Sequence[LayerModule], feeds: Mapping[str, Tensor]
) -> float:
    """See `LayerTimes.passes_bytes`: two steps, as the first one finds an empty heap.

    More than the sum of what is kept: kernels' workspaces, and holes in the heap between blocks
    that live longer.
    """
    before = resident_bytes()
    forget_peak()
    for _ in range(2):
        values: dict[str, Tensor] = {}
        for program, module in zip(programs, modules, strict=True):
            made = module(*(values[v] for v in program.inputs), feeds=feeds)
            values = dict(zip(program.outputs, made, strict=True))
        ends = [value for value in values.values() if value.requires_grad]
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    return peak_bytes() - before


class _Saved:
    """Bytes that autograd keeps for a layer's backward pass, each memory once.

    What an earlier layer keeps, such as the output of a ReLU, is not counted again by the next.
    """

    def __init__(self, module: nn.Module, counted: Set[int] = frozenset()) -> None:
        self.own = {_memory_of(p) for p in module.parameters()} | counted
        self.seen: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda x: x)

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(self.seen.values())

    def __enter__(self) -> _Saved:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._hooks.__exit__(*exception)

    def _pack(self, value: Tensor) -> Tensor:
        memory = _memory_of(value)
        if memory not in self.own:
            self.seen[memory] = value.untyped_storage().nbytes()
        return value


def _memory_of(value: Tensor) -> int:
    """What tells a value's memory from others, which views share; values without data have it."""
    return int(value.untyped_storage()._cdata)


def slowdown(stretch: Stretch | None, *, throttled: bool, seconds: float = 0.4) -> float:
    """Wall seconds per CPU second on this worker: its CPU quota, or its emulated slowness.

    Without either it is 1: other processes that keep the cores busy are not part of a worker.
    """
    factor = 1.0 if stretch is None else stretch.factor
    if not throttled:
        return factor
    x = torch.randn(128, 128)
    began, cpu = time.perf_counter(), time.thread_time()
    while time.perf_counter() - began < seconds:
        x = (x @ x).clamp_(-1, 1)
    spent = time.thread_time() - cpu
    return factor * (time.perf_counter() - began) / max(spent, 1e-6)


def resident_bytes() -> int:
    """Bytes of memory that this process holds now, freed ones given back."""
    release_memory()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> None:
    """Count the peak from now on."""
    release_memory()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> float:
    """Most resident memory since `forget_peak`; NaN where the kernel does not count it."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024.0 * int(line.split()[1])
    return math.nan


def release_memory() -> None:
    """Give freed memory back to the system, so that what a process holds can be measured."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
