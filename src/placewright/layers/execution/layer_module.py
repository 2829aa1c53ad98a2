"""A layer's program as an ``nn.Module``: what DDP, FSDP2 and pipeline stages are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from placewright.capturing.program_calls import dead_after, filled, materialise, resolve_target
from placewright.graph.program import Ref
from placewright.layers.execution.layouts import Peers, gathered, gradient_summed, summed
from placewright.layers.execution.orders import LayerProgram
from placewright.layers.profile.chain import in_place
from placewright.layers.profile.splitting import (
    CONVOLUTIONS,
    RESHAPES,
    Cut,
    SplitCall,
    draws,
)

Use = Callable[[Tensor], Tensor]


class LayerModule(nn.Module):
    """Executes the calls of one layer on named values.

    Parameters
    ----------
    state
        Tensors by name in the model. A `nn.Parameter` is registered as it is, so that layers
        which share a weight share the parameter.
    use
        What a parameter passes through before it is used, for example a gradient sum.
    column
        The worker's place in its replica, where each works on samples of its own: its random
        numbers are its own too (`own_numbers`). ``None`` where all work on the same.
    """

    def __init__(
        self,
        program: LayerProgram,
        state: Mapping[str, Tensor],
        use: Use | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__()
        self.program, self.column = program, column
        self.draws = [draws(i) for i in program.instructions]
        self.attributes: dict[str, str] = {}
        self.use = use
        for value, name in program.parameters.items():
            attribute = name.replace(".", "/")
            self.attributes[value] = attribute
            held = state[name]
            self.register_parameter(
                attribute, held if isinstance(held, nn.Parameter) else nn.Parameter(held)
            )
        for value, name in (*program.buffers.items(), *program.constants.items()):
            attribute = name.replace(".", "/")
            self.attributes[value] = attribute
            self.register_buffer(attribute, state[name])
        self.calls = [
            (resolve_target(i.target), materialise(i.args), i.kwargs, i.results)
            for i in program.instructions
        ]
        self.overwritten = {
            i.args[0].name
            for i in program.instructions
            if in_place(i) and isinstance(i.args[0], Ref)
        } & {*program.inputs, *program.feeds}
        # Autograd keeps what it needs.
        self.dead = dead_after(program.instructions, program.outputs)

    def forward(self, *inputs: Tensor, feeds: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Outputs of the layer, in the order of `LayerProgram.outputs`."""
        values: dict[str, Any] = dict(zip(self.program.inputs, inputs, strict=True))
        values.update({name: feeds[name] for name in self.program.feeds})
        for name in self.overwritten:
            values[name] = values[name].clone()
        for value, attribute in self.attributes.items():
            held = getattr(self, attribute)
            parameter = self.use is not None and value in self.program.parameters
            values[value] = self.use(held) if parameter else held  # type: ignore[misc]
        with casting(self.program.autocast, values.values()):
            for k in range(len(self.calls)):
                if self.draws[k] and self.column is not None:
                    with own_numbers(self.column, values):
                        self.call(k, values)
                else:
                    self.call(k, values)
                for name in self.dead[k]:
                    del values[name]
        return tuple(values[name] for name in self.program.outputs)

    def call(self, k: int, values: dict[str, Any]) -> None:
        """Execute one call."""
        target, args, kwargs, results = self.calls[k]
        device = next((v.device for v in values.values() if isinstance(v, Tensor)), None)
        made = target(
            *filled(args, values),
            **{key: filled(materialise(v, device), values) for key, v in kwargs.items()},
        )
        if len(results) == 1 and not isinstance(made, tuple | list):
            values[results[0]] = made
        else:
            values.update(zip(results, made, strict=True))


def casting(dtype: str, values: Iterable[Any]) -> AbstractContextManager[object]:
    """Autocast to this dtype on the device of the values; empty for none."""
    if not dtype:
        return nullcontext()
    kind = next((v.device.type for v in values if isinstance(v, Tensor)), "cpu")
    return torch.autocast(kind, dtype=getattr(torch, dtype))


@contextmanager
def own_numbers(column: int, values: Mapping[str, Any]) -> Iterator[None]:
    """Random numbers that no other worker of the replica draws, for a call on a part of a value.

    The generators of a replica's workers have to stay equal, for they also draw for what all
    compute whole; parts differ in size, and would draw differently many numbers. So a number that
    all draw seeds the call, with the worker's column. A pass that is computed again from kept
    states of the generators (recomputation) draws the same.
    """
    drawn = torch.randint(2**62, ())
    seed = 0 if isinstance(drawn, FakeTensor) else int(drawn)  # nothing is computed then
    gpus = {v.device for v in values.values() if isinstance(v, Tensor) and v.is_cuda}
    with torch.random.fork_rng(devices=sorted(gpus, key=str)):
        torch.manual_seed(seed + column)
        yield


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
