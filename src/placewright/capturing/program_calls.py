"""An Instruction's target and arguments as a PyTorch callable and real values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import placewright.capturing.rewrites.random_state  # registers placewright.bernoulli
import placewright.capturing.update_rule  # noqa: F401  registers placewright.update
from placewright.errors import InputError
from placewright.graph.program import Const

RECURRENT = "aten.mkldnn_rnn_layer.default"
"""Chooses its kernel by the gradient mode beside its argument `train` (PyTorch 2.13)."""


@cache
def resolve_target(target: str) -> Callable[..., Any]:
    """The callable behind ``aten.convolution.default``; `InputError` if PyTorch has none."""
    overload = operation(target)
    return _in_own_mode(overload) if target == RECURRENT else overload


@cache
def operation(target: str) -> torch._ops.OpOverload:
    """The `OpOverload` itself, with its schema and tags."""
    found: Any = torch.ops
    try:
        for part in target.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise _unknown(target) from error
    if not isinstance(found, torch._ops.OpOverload):
        raise _unknown(target)
    return found


def materialise(argument: Any, device: str | torch.device | None = None) -> Any:
    """An argument with every `Const` as PyTorch's object; a `Ref` stays for the caller to fill.

    A `device` replaces the one that was captured, for programs that run elsewhere.
    """
    if isinstance(argument, Const):
        return _constant(argument, device)
    if isinstance(argument, tuple | list):
        return [materialise(part, device) for part in argument]
    return argument


def _constant(const: Const, device: str | torch.device | None) -> Any:
    if const.kind == "device":
        return torch.device(const.value if device is None else device)
    made = getattr(torch, const.value, None)
    if const.kind not in _KINDS or not isinstance(made, _KINDS[const.kind]):
        raise InputError(f"{const.value!r} is no {const.kind} of PyTorch {torch.__version__}")
    return made


_KINDS = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def _in_own_mode(recurrent: Callable[..., Any]) -> Callable[..., Any]:
    """The layer in the gradient mode that its argument `train` asks for."""

    def layer(*args: Any) -> Any:
        train = bool(args[-1])
        with torch.set_grad_enabled(train):
            made = recurrent(*args)
        return tuple(part if part is None else part.detach() for part in made)

    return layer


def _unknown(target: str) -> InputError:
    return InputError(
        f"PyTorch {torch.__version__} has no operation {target!r}",
        hint="import the package that registers it, or use the PyTorch it was captured with",
    )
