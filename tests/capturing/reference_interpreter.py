"""Execute a Program in one process, as the reference for the worker program."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from placewright.capturing.lowering import spec_of
from placewright.capturing.program_calls import materialise, resolve_target
from placewright.graph.graph import Graph, Ref, TensorSpec


def run(graph: Graph, state: dict[str, Tensor], order: list[int] | None = None) -> dict[str, Any]:
    """One step; `state` is updated in place, the outputs are returned by name."""
    values = execute(graph, state, order)
    return {output.name: values[output.value] for output in graph.program.outputs}


def execute(
    graph: Graph, state: dict[str, Tensor], order: list[int] | None = None
) -> dict[str, Any]:
    """Every value of one step by name."""
    values: dict[str, Any] = dict(state)

    def filled(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument.name]
        return [filled(part) for part in argument] if isinstance(argument, list) else argument

    with torch.no_grad():
        for k in order or range(len(graph.program.instructions)):
            call = graph.program.instructions[k]
            args = filled(materialise(call.args))
            kwargs = {key: filled(materialise(value)) for key, value in call.kwargs.items()}
            made = resolve_target(call.target)(*args, **kwargs)
            parts = made if isinstance(made, tuple | list) else (made,)
            values.update((n, p) for n, p in zip(call.results, parts, strict=False) if n)
    return values


def mismatched_specs(graph: Graph, state: dict[str, Tensor]) -> list[str]:
    """Values whose shape, dtype or strides are not those that the graph says.

    The stride of a dimension of size one has no meaning and is not compared.
    """
    values, wrong = execute(graph, state), []
    for call, operator in zip(graph.program.instructions, graph.operators, strict=True):
        for name, spec in zip(call.results, operator.outputs, strict=True):
            if name and _layout(spec_of(values[name])) != _layout(spec):
                wrong.append(f"{name}: {spec_of(values[name])}, expected {spec}")
    return wrong


def _layout(spec: TensorSpec) -> tuple[object, ...]:
    strides = [s for n, s in zip(spec.shape, spec.stride, strict=True) if n != 1]
    return spec.shape, spec.dtype, strides


def random_order(graph: Graph, seed: int) -> list[int]:
    """A random topological order, which only the tensors of the graph constrain."""
    position = {name: k for k, name in enumerate(graph.operator_names)}
    after: dict[int, set[int]] = {k: set() for k in range(len(position))}
    waiting = [0] * len(position)
    for tensor in graph.tensors:
        after[position[tensor.producer]].update(position[c] for c in tensor.consumers)
    for later in after.values():
        for k in later:
            waiting[k] += 1
    ready, order, draw = [k for k, w in enumerate(waiting) if not w], [], random.Random(seed)
    while ready:
        k = ready.pop(draw.randrange(len(ready)))
        order.append(k)
        for c in sorted(after[k]):
            waiting[c] -= 1
            if not waiting[c]:
                ready.append(c)
    return order
