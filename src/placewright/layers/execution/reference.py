"""The same training step in one process, by plain eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.mode import flags_kept, set_mode
from placewright.capturing.named_state import copied
from placewright.capturing.source import ModelSource, mean_square
from placewright.layers.execution.updates import Update, update_of


def one_process(source: ModelSource) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the whole batch; the model is left as it was."""
    model = source.model
    with _kept(model):
        loss = _loss(model, source)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {
            f"model.{n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
        }
    return float(loss.detach()), gradients


def trained_alone(
    source: ModelSource,
    batches: Iterable[tuple[Any, Any]],
    optimizer: Update | str,
    lr: float = 1e-3,
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and parameters after a step on every batch; the model is left as it was."""
    model, losses = copied(source.model, None)[0], list[float]()
    set_mode(model, training=True)
    steps = update_of(optimizer, lr).made(model.parameters())
    for inputs, targets in batches:
        steps.zero_grad()
        loss = _loss(model, replace(source, inputs=inputs, targets=targets))
        loss.backward()  # type: ignore[no-untyped-call]
        steps.step()
        losses.append(float(loss.detach()))
    return losses, {name: value.detach() for name, value in model.state_dict().items()}


def _loss(model: nn.Module, source: ModelSource) -> Tensor:
    inputs, loss_fn = source.inputs, source.loss_fn or mean_square
    if isinstance(inputs, dict):
        outputs = model(**inputs)
    else:
        outputs = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
    return loss_fn(outputs, source.targets)


@contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Training mode without gradients from before; buffers and gradients are restored."""
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    before = [(p, p.grad) for p in model.parameters()]
    for p, _ in before:
        p.grad = None
    try:
        with flags_kept(model):
            set_mode(model, training=True)
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for p, gradient in before:
            p.grad = gradient
