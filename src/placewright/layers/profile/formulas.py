"""FLOPs, parameters and outputs of layers by formulas (bytes = elements x item size).

| layer | output | parameters | forward FLOPs |
|---|---|---|---|
| Conv2d | B Co Ho Wo | Co (Ci/g) kh kw (+ Co) | 2 B Co Ho Wo (Ci/g) kh kw |
| Linear | B .. n_out | n_in n_out (+ n_out) | 2 B .. n_in n_out |
| Pool | B C Ho Wo | 0 | B C Ho Wo k^2 |
| BatchNorm, LayerNorm | = input | 2C (+ 2C running) | 5 input |
| Embedding | B T d | V d | 0 |
| LSTM (layer, direction) | B T h | 4(h in + h h + 2h) | 8 B T h (in + h) |
| GRU | B T h | 3(h in + h h + 2h) | 6 B T h (in + h) |
| self-attention | B T d | 4d^2 + 4d | 8 B T d^2 + 4 B T^2 d |
| transformer MLP | B T d | 8d^2 + 5d | 16 B T d^2 |

The backward pass of a layer takes about twice its forward pass. Only matrix products,
convolutions, attention and recurrent layers are counted by default, as PyTorch's counter does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, Ref
from placewright.layers.profile.chain import HEAVY, Layer
from placewright.layers.profile.tracing import TracedStep

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Elements and FLOPs of one layer on a batch; none of pooling and normalisation, as PyTorch."""

    output: Shape
    parameters: int
    flops: float


def conv2d(
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: tuple[int, int],
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    bias: bool = True,
) -> LayerCost:
    """A convolution from ``channels[0]`` to ``channels[1]`` channels."""
    given, made = channels
    out = tuple(
        (size[k] + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1
        for k in (0, 1)
    )
    weight = made * (given // groups) * kernel[0] * kernel[1]
    flops = 2.0 * batch * out[0] * out[1] * weight
    return LayerCost((batch, made, *out), weight + made * bias, flops)


def linear(leading: Shape, n_in: int, n_out: int, *, bias: bool = True) -> LayerCost:
    """A linear layer on an input of shape ``(*leading, n_in)``."""
    flops = 2.0 * math.prod(leading) * n_in * n_out
    return LayerCost((*leading, n_out), n_in * n_out + n_out * bias, flops)


def pool2d(
    batch: int,
    channels: int,
    size: tuple[int, int],
    kernel: int,
    *,
    stride: int,
    padding: int = 0,
) -> LayerCost:
    """Maximum or average pooling with square windows."""
    out = tuple((side + 2 * padding - kernel) // stride + 1 for side in size)
    shape = (batch, channels, *out)
    return LayerCost(shape, 0, 0.0)


def batch_norm(shape: Shape) -> LayerCost:
    """Batch normalisation of shape (B, C, ...); running statistics are no parameters."""
    return LayerCost(shape, 2 * shape[1], 0.0)


def layer_norm(shape: Shape, normalised: int = 1) -> LayerCost:
    """Layer normalisation over the last `normalised` dimensions."""
    features = math.prod(shape[len(shape) - normalised :])
    return LayerCost(shape, 2 * features, 0.0)


def embedding(leading: Shape, words: int, width: int) -> LayerCost:
    """A table of `words` vectors; a lookup computes nothing."""
    return LayerCost((*leading, width), words * width, 0.0)


def recurrent(
    kind: str,
    batch: int,
    length: int,
    n_in: int,
    hidden: int,
    *,
    layers: int = 1,
    directions: int = 1,
) -> LayerCost:
    """``lstm`` or ``gru``, with biases."""
    gates = {"lstm": 4, "gru": 3}[kind]
    parameters, flops = 0, 0.0
    for k in range(layers):
        width = n_in if k == 0 else hidden * directions
        parameters += directions * gates * (hidden * width + hidden * hidden + 2 * hidden)
        flops += directions * 2.0 * gates * batch * length * hidden * (width + hidden)
    return LayerCost((batch, length, hidden * directions), parameters, flops)


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
    return linear(x[:-1], weight[1], weight[0]).flops


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


def _lookup(call: Instruction, specs: Mapping[str, TensorSpec]) -> float:
    """Rows of a table are copied, nothing is computed."""
    return 0.0


CALLS: Mapping[str, Callable[[Instruction, Mapping[str, TensorSpec]], float]] = {
    "aten.linear.default": _linear,
    "aten.embedding.default": _lookup,
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
