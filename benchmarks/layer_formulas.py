"""Formulas of layers beside PyTorch, on the models of the zoo.

    python benchmarks/layer_formulas.py [MODEL ...]

For every model, batch 4, shapes only where the model looks at no values:

- modules: convolutions, linear layers, poolings, normalisations, embeddings, recurrent layers
  whose closed formula is compared;
- parameters, outputs: how many of them the formula gives exactly;
- FLOPs: forward, of the formulas summed over the chain of layers, beside PyTorch's counter.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from placewright.capturing.source import ModelSource, load_model
from placewright.capturing.zoo import zoo_models
from placewright.layers.profile import formulas
from placewright.layers.profile.chain import chain
from placewright.layers.profile.formulas import LayerCost
from placewright.layers.profile.tracing import trace_step

BATCH = 4


def main(names: list[str]) -> None:
    """The table."""
    print("| model | modules | parameters | outputs | FLOPs, formulas | counter | difference |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in names or zoo_models():
        try:
            row = cells(load_model(f"zoo:{name}", BATCH, training=True, weights=False))
        except RuntimeError:  # looks at values, for instance of a mask
            row = cells(load_model(f"zoo:{name}", BATCH, training=True))
        print(f"| {name} | {' | '.join(row)} |", flush=True)


def cells(source: ModelSource) -> list[str]:
    """Of one model."""
    counted, exact_parameters, exact_outputs = 0, 0, 0

    def compare(module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        nonlocal counted, exact_parameters, exact_outputs
        cost = closed(module, tuple(given[0].shape)) if given else None
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
    flops = sum(formulas.layer_flops(step, layer) for layer in layers)
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


def closed(m: nn.Module, x: tuple[int, ...]) -> LayerCost | None:
    """The closed formula of a module on an input of shape `x`; ``None`` where there is none."""
    if isinstance(m, nn.Conv2d):
        assert isinstance(m.padding, tuple)
        size, channels = (x[2], x[3]), (m.in_channels, m.out_channels)
        return formulas.conv2d(
            x[0],
            channels,
            size,
            (m.kernel_size[0], m.kernel_size[1]),
            stride=(m.stride[0], m.stride[1]),
            padding=(m.padding[0], m.padding[1]),
            dilation=(m.dilation[0], m.dilation[1]),
            groups=m.groups,
            bias=m.bias is not None,
        )
    if isinstance(m, nn.Linear):
        return formulas.linear(x[:-1], m.in_features, m.out_features, bias=m.bias is not None)
    if isinstance(m, nn.MaxPool2d | nn.AvgPool2d) and isinstance(m.kernel_size, int):
        stride, padding = int(m.stride), int(m.padding)
        return formulas.pool2d(
            x[0], x[1], (x[2], x[3]), m.kernel_size, stride=stride, padding=padding
        )
    if isinstance(m, nn.BatchNorm2d):
        return formulas.batch_norm(x)
    if isinstance(m, nn.LayerNorm):
        return formulas.layer_norm(x, len(m.normalized_shape))
    if isinstance(m, nn.Embedding):
        return formulas.embedding(x, m.num_embeddings, m.embedding_dim)
    if isinstance(m, nn.LSTM | nn.GRU):
        batch, length = (x[0], x[1]) if m.batch_first else (x[1], x[0])
        cost = formulas.recurrent(
            "lstm" if isinstance(m, nn.LSTM) else "gru",
            batch,
            length,
            x[2],
            m.hidden_size,
            layers=m.num_layers,
            directions=1 + m.bidirectional,
        )
        if m.batch_first:
            return cost
        return LayerCost((length, batch, cost.output[2]), cost.parameters, cost.flops)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
