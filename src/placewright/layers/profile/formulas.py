"""Forward FLOPs of layers, from the shapes of their traced calls.

Matrix products, convolutions, attention and recurrent layers are counted, as PyTorch's counter
does. The backward pass of a layer takes about twice its forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, Ref
from placewright.layers.profile.chain import HEAVY, Layer
from placewright.layers.profile.tracing import TracedStep

Shape = tuple[int, ...]


def layer_flops(step: TracedStep, layer: Layer) -> float:
    """Forward FLOPs of the calls of a layer, on the batch that was traced."""
    calls = step.instructions[layer.first : layer.end]
    return sum(call_flops(call, step.specs) for call in calls)


def unknown_calls(step: TracedStep, layer: Layer) -> tuple[str, ...]:
    """Heavy calls of a layer without a formula: only measurements know what they cost."""
    calls = step.instructions[layer.first : layer.end]
    return tuple(
        dict.fromkeys(c.target for c in calls if c.target in HEAVY and c.target not in CALLS)
    )


def call_flops(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    """Forward FLOPs of one call; 0 for what the counter of PyTorch leaves out."""
    formula = CALLS.get(call.target)
    return 0.0 if formula is None else formula(call, specs)


def _shape(argument: object, specs: Mapping[str, TensorSpec]) -> Shape:
    assert isinstance(argument, Ref)
    return specs[argument.name].shape


def _linear(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    x, weight = _shape(call.args[0], specs), _shape(call.args[1], specs)
    return 2.0 * math.prod(x[:-1]) * math.prod(weight)


def _product(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    a, b = (_shape(x, specs) for x in call.args[-2:])
    out = specs[call.results[0]].shape
    return 2.0 * math.prod(out) * a[-1] if b else 0.0


def _convolution(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    weight, out = _shape(call.args[1], specs), specs[call.results[0]].shape
    return 2.0 * math.prod(out) * math.prod(weight[1:])


def _attention(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    query, key, value = (_shape(x, specs) for x in call.args[:3])
    scores = 2.0 * math.prod(query) * key[-2]
    return scores + 2.0 * math.prod(query[:-1]) * key[-2] * value[-1]


def _recurrent(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    """Every step multiplies with all matrices: gates are rows of theirs."""
    x = _shape(call.args[0], specs)
    weights = [_shape(w, specs) for w in call.args[2]]
    return 2.0 * math.prod(x[:-1]) * sum(math.prod(w) for w in weights if len(w) == 2)


def _cell(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    x = _shape(call.args[0], specs)
    weights = [_shape(w, specs) for w in call.args[2:4]]
    return 2.0 * x[0] * sum(math.prod(w) for w in weights)


CALLS: Mapping[str, Callable[[Instruction, Mapping[str, TensorSpec]], float]] = {
    "aten.linear.default": _linear,
    "aten.embedding.default": lambda *_: 0.0,  # rows of a table are copied
    "aten.addmm.default": _product,
    "aten.mm.default": _product,
    "aten.bmm.default": _product,
    "aten.matmul.default": _product,
    "aten.conv2d.default": _convolution,
    "aten.conv2d.padding": _convolution,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.lstm.input": _recurrent,
    "aten.gru.input": _recurrent,
    "aten.lstm_cell.default": _cell,
    "aten.gru_cell.default": _cell,
}
