"""Training or evaluation mode for a while, and nothing of that while left on the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """``model.train(training)`` inside; every module as it was again afterwards.

    A forward pass may leave things behind: a cache, a count, a weight computed anew. During a
    trace those are fakes, which would break the model for whoever uses it next.
    """
    before = [_snapshot(module) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for own, attributes, held in before:
            own.clear()
            own.update(attributes)
            for container, content in held:
                _refill(container, content)


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
