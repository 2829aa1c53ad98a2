"""Forward FLOPs of layers, from the shapes of their traced calls.

Matrix products, convolutions, attention and recurrent layers are counted, by the formulas of
`placewright.capturing.flops`. The backward pass of a layer takes about twice its forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from placewright.capturing.flops.counting import work_of
from placewright.capturing.program_calls import resolve_target
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, Ref
from placewright.layers.profile.chain import Layer
from placewright.layers.profile.tracing import TracedStep


def layer_flops(step: TracedStep, layer: Layer) -> float:
    """Forward FLOPs of the calls of a layer, on the batch that was traced."""
    calls = step.instructions[layer.first : layer.end]
    return sum(call_flops(call, step.specs) for call in calls)


def call_flops(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    """Forward FLOPs of one call; 0 for what only computes per element."""
    args, kwargs, made = (
        _with_shapes(part, specs)
        for part in (call.args, dict(call.kwargs), tuple(Ref(name) for name in call.results))
    )
    return work_of(_operation(call.target), args, kwargs, made).flops


def _operation(target: str) -> torch._ops.OpOverload:
    return cast(torch._ops.OpOverload, resolve_target(target))


def _with_shapes(value: Any, specs: Mapping[str, TensorSpec]) -> Any:
    """Arguments with tensors of no memory in the places of names."""
    if isinstance(value, Ref):
        spec = specs[value.name]
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
    if isinstance(value, tuple | list):
        return tuple(_with_shapes(part, specs) for part in value)
    if isinstance(value, dict):
        return {key: _with_shapes(part, specs) for key, part in value.items()}
    return value
