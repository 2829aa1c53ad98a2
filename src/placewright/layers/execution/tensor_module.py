"""A layer that is split over the workers of its replica; the collectives of every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.program_calls import filled
from placewright.graph.program import Ref
from placewright.layers.execution.layer_module import LayerModule, own_numbers
from placewright.layers.execution.layouts import Peers, gathered, gradient_summed, summed
from placewright.layers.execution.orders import LayerProgram
from placewright.layers.profile.splitting import (
    CONVOLUTIONS,
    RESHAPES,
    Cut,
    SplitCall,
)


class TensorModule(LayerModule):
    """Holds this worker's parts of the weights; takes and returns whole activations.

    `shared`: names of parameters that other layers use too: they stay whole.
    """

    def __init__(
        self,
        program: LayerProgram,
        state: Mapping[str, Tensor],
        peers: Peers,
        shared: frozenset[str] = frozenset(),
    ) -> None:
        self.peers = peers
        self.split = program.split(len(peers.rows), shared)
        self.parts: dict[str, Cut] = {}
        own = dict(state)
        for value, cut in self.split.parameters.items():
            name = program.parameters[value]
            whole = state[name]
            part = peers.own(whole.detach(), cut.sizes, cut.dim)
            own[name] = nn.Parameter(
                part.clone(memory_format=torch.contiguous_format),
                requires_grad=whole.requires_grad,
            )
            self.parts[name] = cut
        super().__init__(program, own)

    def forward(self, *inputs: Tensor, feeds: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """See `LayerModule.forward`."""
        made = super().forward(*inputs, feeds=feeds)
        ends = self.split.ends
        return tuple(
            self._gathered(value, ends[name]) if name in ends else value
            for name, value in zip(self.program.outputs, made, strict=True)
        )

    def call(self, k: int, values: dict[str, Any]) -> None:
        """Execute one call, with the collectives that it needs."""
        how = self.split.calls[k]
        for name, cut in how.gathers:
            values[name] = self._gathered(values[name], cut)
        if how.way == "whole":
            super().call(k, values)
        elif how.way == "keep":
            self._kept(k, how, values)
        else:
            self._product(k, how, values)

    def _gathered(self, value: Tensor, cut: Cut) -> Tensor:
        return gathered(value.contiguous(), self.peers, cut.sizes, cut.dim)

    def _kept(self, k: int, how: SplitCall, values: dict[str, Any]) -> None:
        call = self.program.instructions[k]
        if call.target in RESHAPES and how.result is not None:
            sizes = list(self.program.specs[call.results[0]].shape)
            sizes[how.result.dim] = how.result.sizes[self.peers.column]
            values[call.results[0]] = filled(self.calls[k][1][0], values).reshape(sizes)
        elif self.draws[k]:
            with own_numbers(self.peers.column, values):
                super().call(k, values)
        else:
            super().call(k, values)

    def _product(self, k: int, how: SplitCall, values: dict[str, Any]) -> None:
        target, args, kwargs, results = self.calls[k]
        weight, bias = how.weight, how.bias
        given = dict(values)
        if how.way == "column":
            for argument in args:
                if isinstance(argument, Ref) and argument.name not in (weight, bias):
                    x = values[argument.name]
                    if x.is_floating_point():
                        given[argument.name] = gradient_summed(x, self.peers)
            values[results[0]] = target(*filled(args, given), **kwargs)
            return
        if bias:  # every worker has a part of the sum: the bias is added once, to the whole
            given[bias] = values[bias].new_zeros(()).expand_as(values[bias])
        total = summed(target(*filled(args, given), **kwargs), self.peers)
        if bias:
            shape = [1] * total.dim()
            shape[1 if self.program.instructions[k].target in CONVOLUTIONS else -1] = -1
            total = total + values[bias].view(shape)
        values[results[0]] = total
