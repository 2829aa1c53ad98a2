"""Training or evaluation mode for a while, and nothing of that while left on the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn


@contextmanager
def in_mode(model: nn.Module, *others: nn.Module, training: bool) -> Iterator[None]:
    """``model.train(training)`` inside; every module as it was again afterwards, others too.

    A forward pass may leave things behind: a cache, a count, a weight computed anew. During a
    trace those are fakes, which would break the model for whoever uses it next. A plain tensor
    that is changed by numbers alone (``self.calls += 1``) changes for real.
    """
    modules = [module for whole in (model, *others) for module in whole.modules()]
    before = [_snapshot(module) for module in modules]
    plain = [_kept(v) for module in modules for v in _plain_tensors(module)]
    set_mode(model, training=training)
    try:
        yield
    finally:
        for own, attributes, held in before:
            own.clear()
            own.update(attributes)
            for container, content in held:
                _refill(container, content)
        for tensor, version, content in plain:
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(content)


def set_mode(model: nn.Module, *, training: bool) -> None:
    """``model.train(training)``; a ``torch.export`` module stays in the mode it was exported in."""
    try:
        model.train(training)
    except NotImplementedError:
        if not isinstance(model, fx.GraphModule):
            raise


def _plain_tensors(module: nn.Module) -> list[Tensor]:
    """Attributes that are no parameters and no buffers; what is one of inference mode's stays."""
    tensors = [v for v in vars(module).values() if isinstance(v, Tensor)]
    return [v for v in tensors if not v.is_inference()]


def _kept(tensor: Tensor) -> tuple[Tensor, int, Tensor]:
    """A tensor, how often it was changed, and what is in it."""
    return tensor, tensor._version, tensor.detach().clone()


def _snapshot(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], list[tuple[Any, Any]]]:
    """A module's attributes and, one level down, what its lists, dicts and sets hold."""
    own = vars(module)
    held = [(v, v.copy()) for v in own.values() if isinstance(v, list | dict | set)]
    return own, dict(own), held


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)
