"""The same training step in one process, by plain eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from placewright.capturing.source import ModelSource, mean_square


def one_process(source: ModelSource) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the whole batch; the model is left as it was."""
    model, loss_fn = source.model, source.loss_fn or mean_square
    with _kept(model):
        inputs = source.inputs
        if isinstance(inputs, dict):
            outputs = model(**inputs)
        else:
            outputs = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
        loss = loss_fn(outputs, source.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {
            f"model.{n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
        }
    return float(loss.detach()), gradients


@contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Training mode without gradients from before; buffers and gradients are restored."""
    training = model.training
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    before = [(p, p.grad) for p in model.parameters()]
    for p, _ in before:
        p.grad = None
    model.train()
    try:
        yield
    finally:
        model.train(training)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for p, gradient in before:
            p.grad = gradient
