"""A layer's program as an ``nn.Module``: what DDP, FSDP2 and pipeline stages are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from placewright.capturing.program_calls import dead_after, filled, materialise, resolve_target
from placewright.graph.program import Ref
from placewright.layers.execution.orders import LayerProgram
from placewright.layers.profile.chain import in_place
from placewright.layers.profile.splitting import draws

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
