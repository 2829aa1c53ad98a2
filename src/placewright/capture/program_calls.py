"""From the plain data of an Instruction to what PyTorch can call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from placewright.errors import InputError
from placewright.graph.program import Const

NEEDS_GRAD_MODE = ("aten.mkldnn_rnn_layer.default",)
"""Operations that leave out results their backward needs, unless gradients are on."""


@cache
def resolve_target(target: str) -> Callable[..., Any]:
    """The callable behind ``aten.convolution.default``.

    Raises
    ------
    InputError
        This PyTorch does not have the operation.
    """
    overload = operation(target)
    return _with_gradients(overload) if target in NEEDS_GRAD_MODE else overload


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
    """An argument with every `Const` made real; `Ref` stays for the caller to fill.

    Parameters
    ----------
    device
        Replaces the device that was captured, for programs that run elsewhere.
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


def _with_gradients(call: Callable[..., Any]) -> Callable[..., Any]:
    def graded(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            made = call(*args, **kwargs)
        if isinstance(made, tuple | list):
            return tuple(x if x is None else x.detach() for x in made)
        return made.detach()

    return graded


def _unknown(target: str) -> InputError:
    return InputError(
        f"PyTorch {torch.__version__} has no operation {target!r}",
        hint="import the package that registers it, or use the PyTorch it was captured with",
    )
