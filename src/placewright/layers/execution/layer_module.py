"""Layers of a plan on workers: orders with programs, and the modules that are made of them.

DDP, FSDP2 and pipeline stages are given an ``nn.Module`` per layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from placewright.capturing.program_calls import dead_after, filled, materialise, resolve_target
from placewright.capturing.updates import Update
from placewright.graph.graph import Instruction, Ref, TensorSpec
from placewright.layers.chain import (
    CONVOLUTIONS,
    RESHAPES,
    Cut,
    Split,
    SplitCall,
    draws,
    in_place,
    split_layer,
    written,
)
from placewright.layers.execution.layouts import (
    Peers,
    differentiable,
    gathered,
    gradient_summed,
    summed,
)


@dataclass(frozen=True, slots=True)
class LayerProgram:
    """Calls of one layer on a fixed number of samples.

    Attributes
    ----------
    inputs, outputs
        Values that come from the layer before, and go to the next one.
    feeds
        Values of the batch that it reads.
    parameters, buffers, constants
        Value -> name in the file of the model's state.
    specs
        Of all values.
    autocast
        See `placewright.layers.tracing.TracedStep`.
    """

    samples: int
    instructions: tuple[Instruction, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    feeds: tuple[str, ...]
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    constants: Mapping[str, str]
    specs: Mapping[str, TensorSpec]
    autocast: str = ""

    def same_tensors(self, other: LayerProgram, degree: int, shared: frozenset[str]) -> bool:
        """Whether a module of this layer, over `degree` workers, has what the other program needs.

        `other`: of the same layer on another number of samples.
        """
        return self._held(degree, shared) == other._held(degree, shared)

    def _held(self, degree: int, shared: frozenset[str]) -> dict[str, Cut | None]:
        """Tensors of the model by name, and how each is cut."""
        cuts = self.split(degree, shared).parameters if degree > 1 else {}
        whole = dict.fromkeys((*self.buffers.values(), *self.constants.values()))
        return whole | {name: cuts.get(value) for value, name in self.parameters.items()}

    def split(self, degree: int, shared: frozenset[str] = frozenset()) -> Split:
        """The layer over `degree` workers; parameters named in `shared` stay whole."""
        free = frozenset(v for v, name in self.parameters.items() if name not in shared)
        return split_layer(self.instructions, self.specs, free, self.outputs, degree)


@dataclass(frozen=True, slots=True)
class LayerOrder:
    """One layer on one worker.

    `strategy`: a value of `placewright.layers.plan.Strategy`.
    `program`: on the samples that this worker takes of a micro-batch.
    """

    name: str
    strategy: str
    program: LayerProgram


@dataclass(frozen=True, slots=True)
class SizedLayers:
    """All layers on one number of samples, and a batch of so many as safetensors."""

    programs: tuple[LayerProgram, ...]
    batch: bytes


@dataclass(frozen=True, slots=True)
class StageOrder:
    """One worker's part of a plan.

    Attributes
    ----------
    stage, stages
        Its number, and how many there are.
    layers
        In order.
    replica, column
        Its position in the stage's mesh of replicas x tensor degree.
    shares
        Samples of a micro-batch of every replica of this stage.
    micro_batches, schedule
        As of `placewright.layers.plan.LayerPlan`.
    zero_stage, recompute
        As of `placewright.layers.plan.Stage`.
    chain
        Ranks of the pipeline that this worker is in, by stage.
    across
        Ranks of the same column in all replicas: gradients are summed over them.
    inside
        Ranks of its replica: they split layers among each other.
    feeds, batched
        Values of a batch in order; those that are cut along samples.
    loss_share
        Weight of the loss of this worker's samples of a micro-batch in that of the whole batch.
    counts
        Whether its loss is counted: workers that compute the same one count once.
    received, sent
        Activations of a micro-batch from the stage before, and to the one after.
    shared
        Parameters that several layers use.
    update
        Of the parameters.
    everyone
        Ranks of all workers of the plan, which clip gradients together.
    draws
        Whether the model draws random numbers.
    """

    stage: int
    stages: int
    layers: tuple[LayerOrder, ...]
    replica: int
    column: int
    shares: tuple[int, ...]
    micro_batches: int
    schedule: str
    zero_stage: int
    recompute: bool
    chain: tuple[int, ...]
    across: tuple[int, ...]
    inside: tuple[int, ...]
    feeds: tuple[str, ...]
    batched: tuple[str, ...]
    loss_share: float
    counts: bool
    received: tuple[TensorSpec, ...]
    sent: tuple[TensorSpec, ...]
    update: Update
    shared: tuple[str, ...] = ()
    everyone: tuple[int, ...] = ()
    draws: bool = False

    @property
    def draws_in_order(self) -> bool:
        """Whether all stages draw one after another, as one process does."""
        return self.draws and len(self.shares) == 1 and self.micro_batches == 1


@dataclass(frozen=True, slots=True)
class WorkerStepTimes:
    """One step of one worker, seconds of its own clock after the barrier.

    Attributes
    ----------
    step_s
        The whole step.
    forward_s, backward_s
        Inside its layers, waiting for other workers included.
    loss
        Its part of the loss of the whole batch.
    work_s
        `forward_s` without waiting for the other workers of its replica: how fast it is itself.
    grad_norm
        Of all gradients before they were clipped; NaN where they are not.
    overflow
        Whether a scaled gradient was infinite, so that nothing was updated.
    random
        State of the generator after the step, of the worker that knows it.
    """

    step_s: float
    forward_s: float
    backward_s: float
    loss: float
    work_s: float = 0.0
    grad_norm: float = math.nan
    overflow: bool = False
    random: bytes = b""


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
        self.column, self.use = column, use
        for name in program.parameters.values():
            held = state[name]
            self.register_parameter(
                _attribute(name), held if isinstance(held, nn.Parameter) else nn.Parameter(held)
            )
        for name in (*program.buffers.values(), *program.constants.values()):
            self.register_buffer(_attribute(name), state[name])
        self.take(program)

    def take(self, program: LayerProgram) -> None:
        """Execute the calls of the layer on another number of samples, with the same tensors."""
        self.program = program
        self.draws = [draws(i) for i in program.instructions]
        held = {**program.parameters, **program.buffers, **program.constants}
        self.attributes = {value: _attribute(name) for value, name in held.items()}
        self.calls = [
            (resolve_target(i.target), materialise(i.args), i.kwargs, i.results)
            for i in program.instructions
        ]
        self.overwritten = {
            i.args[0].name
            for i in program.instructions
            if in_place(i) and isinstance(i.args[0], Ref)
        } & {*program.inputs, *program.feeds}
        changes = any(written(i) or _keeps_statistics(i) for i in program.instructions)
        names = program.buffers.values() if changes else ()
        self.changing = [_attribute(name) for name in names]
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

    def passes(self) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        """Contexts of a forward pass that begins now, and of the same pass computed again.

        That one has the buffers which this one begins with, and leaves those of then: batch norm
        would update its statistics twice.
        """
        begun = {name: self._buffers[name].clone() for name in self.changing}  # type: ignore[union-attr]
        return nullcontext(), self._holding(begun)

    @contextmanager
    def _holding(self, buffers: Mapping[str, Tensor]) -> Iterator[None]:
        """Other buffers for a while; those of now are not written to, for autograd keeps some."""
        now = {name: self._buffers[name] for name in buffers}
        self._buffers.update(buffers)
        try:
            yield
        finally:
            self._buffers.update(now)

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


def _keeps_statistics(call: Instruction) -> bool:
    """Whether a call updates buffers without a name that says so."""
    return call.target.split(".")[1] in ("batch_norm", "instance_norm", "counted_batch_norm")


def _attribute(name: str) -> str:
    """As which a module holds a tensor of the model: its names have no dots."""
    return name.replace(".", "/")


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
        self.peers, self.shared = peers, shared
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

    def take(self, program: LayerProgram) -> None:
        """See `LayerModule.take`."""
        self.split = program.split(len(self.peers.rows), self.shared)
        super().take(program)

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
                    if differentiable(x.dtype):
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
