"""Activations, gradients and shards between workers, with the gradients of one process.

Layouts of an activation inside a replica: *whole* (every worker has all samples of the replica)
and *rows* (each has its own samples). Gradients keep one rule in both: a worker's gradient of a
value is the whole derivative of the batch's loss by what it holds, never a part of a sum.

    rows -> whole    forward all-gather of samples,     backward take the own samples
    whole -> rows    forward take the own samples,      backward all-gather
    weights of DATA layers                              backward sum over the replica

Over the replicas of a stage FSDP2 shards states (ZeRO 2 and 3; `sharded`, `shard_times`). On CPUs
its streams do nothing: a layer's weights are gathered before its passes and its gradients scattered
after them while the worker does nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)

from placewright.runtime.emulation import Stretch


@dataclass(slots=True)
class Peers:
    """Workers of one replica.

    Attributes
    ----------
    rows
        Samples of every worker in the layout *rows*, by column.
    stretch
        Owed waiting time of an emulated slower device is paid before others can see anything.
    waited_s
        Seconds in collectives so far.
    """

    group: Any
    column: int
    rows: tuple[int, ...]
    stretch: Stretch | None = None
    waited_s: float = 0.0

    def pay(self) -> None:
        """Sleep what an emulated device owes."""
        if self.stretch is not None:
            self.stretch.pay()

    def all_gather(self, part: Tensor, sizes: Sequence[int], dim: int) -> Tensor:
        """The parts of all workers in one tensor; `sizes` along `dim` by column.

        gloo gathers equal sizes only: smaller parts are padded.
        """
        self.pay()
        part = part.movedim(dim, 0)
        padded = part.new_zeros((max(sizes), *part.shape[1:]))
        padded[: part.shape[0]] = part
        gathered = [torch.empty_like(padded) for _ in sizes]
        began = time.perf_counter()
        dist.all_gather(gathered, padded, group=self.group)
        self.waited_s += time.perf_counter() - began
        self.restart()
        return torch.cat([g[:n] for g, n in zip(gathered, sizes, strict=True)]).movedim(0, dim)

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum over all workers."""
        self.pay()
        # A copy: all-reduce writes in place, and autograd may keep the value.
        total = value.contiguous().clone()
        began = time.perf_counter()
        dist.all_reduce(total, group=self.group)
        self.waited_s += time.perf_counter() - began
        self.restart()
        return total

    def restart(self) -> None:
        """Communication costs an emulated device nothing extra."""
        if self.stretch is not None:
            self.stretch.begin()

    def own(self, whole: Tensor, sizes: Sequence[int], dim: int) -> Tensor:
        """The own part of a tensor that is there whole."""
        return whole.narrow(dim, sum(sizes[: self.column]), sizes[self.column])

    def sizes(self, length: int) -> tuple[int, ...]:
        """The rows of every worker in an activation whose first dimension is `length` in all."""
        each = length // sum(self.rows)
        return tuple(rows * each for rows in self.rows)


class _Gather(torch.autograd.Function):
    """Parts -> whole; backward the own part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, peers: Peers, sizes: Sequence[int], dim: int) -> Tensor:
        ctx.given = peers, sizes, dim
        return peers.all_gather(part, sizes, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        peers, sizes, dim = ctx.given
        return peers.own(gradient, sizes, dim).contiguous(), None, None, None


class _Slice(torch.autograd.Function):
    """Whole -> the own part; backward all-gather."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, peers: Peers, sizes: Sequence[int], dim: int) -> Tensor:
        ctx.given = peers, sizes, dim
        return peers.own(whole, sizes, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        peers, sizes, dim = ctx.given
        return peers.all_gather(gradient, sizes, dim), None, None, None


class _SumBackward(torch.autograd.Function):
    """The value itself; its gradient is summed over the workers."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.peers.all_reduce(gradient), None


class _SumForward(torch.autograd.Function):
    """The sum of the workers' values; every worker's gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, peers: Peers) -> Tensor:
        return peers.all_reduce(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


def gradient_summed(value: Tensor, peers: Peers) -> Tensor:
    """The value itself, for whose gradient every worker has a part of a sum."""
    passed: Tensor = _SumBackward.apply(value, peers)  # type: ignore[no-untyped-call]
    return passed


def summed(value: Tensor, peers: Peers) -> Tensor:
    """The sum of what the workers have."""
    total: Tensor = _SumForward.apply(value, peers)  # type: ignore[no-untyped-call]
    return total


def gathered(value: Tensor, peers: Peers, sizes: Sequence[int], dim: int) -> Tensor:
    """The parts of all workers, `sizes` along `dim`."""
    whole: Tensor = _Gather.apply(value, peers, sizes, dim)  # type: ignore[no-untyped-call]
    return whole


def differentiable(dtype: torch.dtype) -> bool:
    """Whether gradients go through values of this type."""
    return dtype.is_floating_point or dtype.is_complex


def to_whole(value: Tensor, peers: Peers) -> Tensor:
    """An activation in the layout *rows*, gathered."""
    if not differentiable(value.dtype):
        return peers.all_gather(value, _row_sizes(value, peers), 0)
    return gathered(value, peers, _row_sizes(value, peers), 0)


def to_rows(value: Tensor, peers: Peers) -> Tensor:
    """The own samples of an activation in the layout *whole*."""
    sizes = peers.sizes(value.shape[0])
    if not differentiable(value.dtype):
        return peers.own(value, sizes, 0)
    sliced: Tensor = _Slice.apply(value, peers, sizes, 0)  # type: ignore[no-untyped-call]
    return sliced


def _row_sizes(value: Tensor, peers: Peers) -> tuple[int, ...]:
    each = value.shape[0] // peers.rows[peers.column]
    return tuple(rows * each for rows in peers.rows)


UNITS, ROUNDS = 3, 8
"""Layers in a row that are timed, and how often after a first time."""


def sharded(
    stage: nn.Module,
    layers: Sequence[nn.Module],
    mesh: DeviceMesh,
    stretch: Stretch | None,
    *,
    keep: bool,
) -> nn.Module:
    """FSDP2, a unit per layer; `keep`: weights stay gathered until the backward pass."""
    for layer in layers:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=not keep)
    fully_shard(stage, mesh=mesh, reshard_after_forward=False)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            # Losses are weighted by samples: gradients are summed, and gloo has a plain sum.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if stretch is not None:
                module.set_custom_all_gather(_PaidGather(stretch))
                module.set_custom_reduce_scatter(_PaidScatter(stretch))
    return stage


class _PaidGather(DefaultAllGather):
    """An emulated device's slowness is over before others can see that it takes part.

    Paid later, the others would wait for this worker's real time here, and for its sleep in the
    next collective once more.
    """

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.stretch.pay()
        return super().__call__(*args, **kwargs)


class _PaidScatter(DefaultReduceScatter):
    """Likewise."""

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.stretch.pay()
        return super().__call__(*args, **kwargs)


def shard_times(
    group: Any, stretch: Stretch, layers: Sequence[tuple[int, int]]
) -> list[tuple[float, float]]:
    """Seconds of gathering the weights, and of scattering the gradients, of layers.

    Hooks, copies into and out of flat buffers, and messages. All workers of the group take part.

    `layers`: elements, and into how many parameters they are divided.
    """
    return [_unit_times(group, stretch, *layer) for layer in layers]


def _unit_times(group: Any, stretch: Stretch, elements: int, tensors: int) -> tuple[float, float]:
    units = [_Weights(elements, tensors) for _ in range(UNITS)]
    mesh = DeviceMesh.from_group(group, "cpu")
    row = sharded(nn.Sequential(*units), units, mesh, stretch, keep=False)
    x = torch.ones(1, requires_grad=True)
    gathers, both = [], []
    for _ in range(ROUNDS + 1):
        dist.barrier(group)
        stretch.begin()
        start = time.perf_counter()
        made = row(x)
        stretch.pay()
        middle = time.perf_counter()
        made.backward()
        stretch.pay()
        gathers.append((middle - start) / UNITS)
        both.append((time.perf_counter() - middle) / UNITS)
        for parameter in row.parameters():
            parameter.grad = None
    # Other load on the machine only adds: a quarter of the rounds was not slower.
    gather_s, both_s = (sorted(times[1:])[ROUNDS // 4] for times in (gathers, both))
    return gather_s, max(both_s - gather_s, 0.0)


class _Weights(nn.Module):
    """Parameters that cost nothing to compute with."""

    def __init__(self, elements: int, tensors: int) -> None:
        super().__init__()
        rows = max(elements // tensors // 64, 1)
        self.held = nn.ParameterList(nn.Parameter(torch.zeros(rows, 64)) for _ in range(tensors))

    def forward(self, x: Tensor) -> Tensor:
        return _Use.apply(x, *self.held)  # type: ignore[no-any-return, no-untyped-call]


class _Use(torch.autograd.Function):
    """The first argument; gradients of the others are whatever is in fresh memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *held: Tensor) -> Tensor:
        ctx.shapes = [value.shape for value in held]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], *(torch.empty(shape) for shape in ctx.shapes)
