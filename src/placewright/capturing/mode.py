"""Training or evaluation mode for the time of a trace; the model is restored afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from placewright.errors import MissingDependencyError

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", extra="torch", purpose="capturing a model") from error

from torch import Tensor, fx, nn


class CaptureWarning(UserWarning):
    """In later steps a program may differ from the model."""


@contextmanager
def in_mode(model: nn.Module, *others: nn.Module, training: bool) -> Iterator[None]:
    """Set ``model.train(training)``, and restore every module of all afterwards.

    A forward pass may leave attributes behind: a cache, a count, a weight computed anew. During a
    trace those are fakes, which would break the model afterwards. A plain tensor that is changed
    by numbers alone (``self.calls += 1``) changes for real, and is restored too.

    Warns with `CaptureWarning`: a number that is an attribute of a module has changed: a program
    has the first value.
    """
    modules = [module for whole in (model, *others) for module in whole.modules()]
    before = [_snapshot(module) for module in modules]
    plain = [_kept(v) for module in modules for v in _plain_tensors(module)]
    set_mode(model, training=training)
    try:
        yield
        for (name, module), (_, attributes, _) in zip(model.named_modules(), before, strict=False):
            _warn_of_changed_numbers(
                f"module {name!r}" if name else "the model", module, attributes
            )
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


def _warn_of_changed_numbers(where: str, module: nn.Module, before: dict[str, Any]) -> None:
    """Warn of attributes that are numbers and that a forward pass has changed."""
    for key, old in before.items():
        new = vars(module).get(key)
        plain = isinstance(old, int | float) and isinstance(new, int | float)
        if plain and new != old and key != "training":
            warnings.warn(
                f"{where} changes its attribute {key!r} from {old!r} to {new!r} in a forward pass: "
                f"where it computes with it, every step of the program has the value of the first "
                "one; make it a buffer (register_buffer) that is changed in place, and run with "
                "--check to compare the first steps with eager PyTorch",
                CaptureWarning,
                stacklevel=2,
            )


def set_mode(model: nn.Module, *, training: bool) -> None:
    """``model.train(training)``; a ``torch.export`` module stays in the mode it was exported in."""
    try:
        model.train(training)
    except NotImplementedError:
        if not isinstance(model, fx.GraphModule):
            raise


def _plain_tensors(module: nn.Module) -> list[Tensor]:
    """Tensors that are no parameters and no buffers; those of inference mode have no version."""
    tensors = [v for v in vars(module).values() if isinstance(v, Tensor)]
    return [v for v in tensors if not v.is_inference()]


def _kept(tensor: Tensor) -> tuple[Tensor, int, Tensor]:
    """A tensor, its version, and a copy."""
    return tensor, tensor._version, tensor.detach().clone()


def _snapshot(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], list[tuple[Any, Any]]]:
    """A module's attributes and, one level down, copies of its lists, dicts and sets."""
    own = vars(module)
    held = [(v, v.copy()) for v in own.values() if isinstance(v, list | dict | set)]
    return own, dict(own), held


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)
