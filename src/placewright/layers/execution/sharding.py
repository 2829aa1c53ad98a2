"""FSDP2 over the replicas of a stage (ZeRO 2 and 3), and what its collectives take on workers.

On CPUs its streams do nothing: a layer's weights are gathered before its passes and its gradients
scattered after them while the worker does nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
