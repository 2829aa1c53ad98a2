"""Compare the formulas for parameters, outputs and FLOPs of layers with PyTorch, on the zoo.

    python benchmarks/layer_formulas.py [MODEL ...]

For every model, batch 4, shapes only where the model looks at no values:

- modules: convolutions, linear layers, poolings, normalisations, embeddings, recurrent layers
  whose closed formula is compared;
- parameters, outputs: how many of them the formula gives exactly;
- FLOPs: forward, of the formulas summed over the chain of layers, beside PyTorch's counter.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from harness import Table, run
from placewright.capturing.source import ModelSource, load_model
from placewright.capturing.zoo import zoo_models
from placewright.layers.chain import chain, layer_flops
from placewright.layers.tracing import trace_step

BATCH = 4


def main(*models: str) -> None:
    """The table."""
    head = ("parameters", "outputs", "FLOPs, formulas", "counter", "difference")
    table = Table("model", "modules", *head)
    for name in models or zoo_models():
        try:
            row = cells(load_model(f"zoo:{name}", BATCH, training=True, weights=False))
        except RuntimeError:  # looks at values, for instance of a mask
            row = cells(load_model(f"zoo:{name}", BATCH, training=True))
        table.row(name, *row)


def cells(source: ModelSource) -> list[str]:
    """Of one model."""
    counted, exact_parameters, exact_outputs = 0, 0, 0

    def compare(module: nn.Module, inputs: tuple[Any, ...], made: Any) -> None:
        nonlocal counted, exact_parameters, exact_outputs
        cost = closed(module, tuple(inputs[0].shape)) if inputs else None
        if cost is None:
            return
        counted += 1
        output = made[0] if isinstance(made, tuple) else made
        held = sum(p.numel() for p in module.parameters(recurse=False))
        exact_parameters += cost.parameters == held
        exact_outputs += cost.output == tuple(output.shape)

    hooks = [m.register_forward_hook(compare) for m in source.model.modules()]
    # The counter of PyTorch 2.13 does not know the attention kernel for CPUs.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        forward(source)
    for hook in hooks:
        hook.remove()
    step = trace_step(source, BATCH)
    layers = chain(step)
    flops = sum(layer_flops(step, layer) for layer in layers)
    held = {name for layer in layers for name in layer.parameters}
    own = {f"model.{name}" for name, _ in source.model.named_parameters()}
    known = counter.get_total_flops()
    missing = f", {len(own - held)} in no layer" if held != own else ""
    return [
        f"{counted}",
        f"{exact_parameters}{missing}",
        f"{exact_outputs}",
        f"{flops:.6g}",
        f"{known:.6g}",
        f"{flops / known - 1:+.3%}",
    ]


def forward(source: ModelSource) -> None:
    """One forward pass."""
    if isinstance(source.inputs, dict):
        source.model(**source.inputs)
    elif isinstance(source.inputs, tuple | list):
        source.model(*source.inputs)
    else:
        source.model(source.inputs)


class LayerCost(NamedTuple):
    """Elements and FLOPs of one layer on a batch; none of pooling and normalisation, as PyTorch."""

    output: tuple[int, ...]
    parameters: int
    flops: float


def closed(m: nn.Module, x: tuple[int, ...]) -> LayerCost | None:
    """The closed formula of a module on an input of shape `x`; ``None`` where there is none."""
    if isinstance(m, nn.Conv2d):
        output = (x[0], m.out_channels, *_windows(m, x, m.kernel_size, m.dilation))
        weight = m.out_channels * (m.in_channels // m.groups) * math.prod(m.kernel_size)
        flops = 2.0 * math.prod(output) / m.out_channels * weight
        return LayerCost(output, weight + m.out_channels * (m.bias is not None), flops)
    if isinstance(m, nn.Linear):
        weight, bias = m.in_features * m.out_features, m.out_features * (m.bias is not None)
        return LayerCost((*x[:-1], m.out_features), weight + bias, 2.0 * math.prod(x[:-1]) * weight)
    if isinstance(m, nn.MaxPool2d | nn.AvgPool2d):
        return LayerCost((*x[:2], *_windows(m, x, _pair(m.kernel_size), (1, 1))), 0, 0.0)
    if isinstance(m, nn.BatchNorm2d):
        return LayerCost(x, 2 * x[1], 0.0)
    if isinstance(m, nn.LayerNorm):
        return LayerCost(x, 2 * math.prod(x[len(x) - len(m.normalized_shape) :]), 0.0)
    if isinstance(m, nn.Embedding):
        return LayerCost((*x, m.embedding_dim), m.num_embeddings * m.embedding_dim, 0.0)
    if isinstance(m, nn.LSTM | nn.GRU):
        return _recurrent(m, x)
    return None


def _recurrent(m: nn.LSTM | nn.GRU, x: tuple[int, ...]) -> LayerCost:
    """Each direction of each layer: gates x hidden x (inputs + hidden) weights, and two biases."""
    directions, hidden = 1 + m.bidirectional, m.hidden_size
    parameters, flops = 0, 0.0
    for k in range(m.num_layers):
        width = x[2] if k == 0 else hidden * directions
        rows = directions * (4 if isinstance(m, nn.LSTM) else 3) * hidden
        parameters += rows * (width + hidden + 2)
        flops += 2.0 * rows * x[0] * x[1] * (width + hidden)
    return LayerCost((*x[:2], hidden * directions), parameters, flops)


def _windows(m: Any, x: tuple[int, ...], kernel: Any, dilation: Any) -> tuple[int, int]:
    """Height and width that windows over an image of shape (..., height, width) leave."""
    stride, padding = _pair(m.stride), _pair(m.padding)
    height, width = (
        (x[2 + k] + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1
        for k in (0, 1)
    )
    return height, width


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


if __name__ == "__main__":
    run(main)
