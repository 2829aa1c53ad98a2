"""What a step is fed: fakes of parameters, buffers, inputs and targets, flat and with names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from placewright.capturing.containers import leaves_of, refilled
from placewright.capturing.named_state import Loss, ModelAndLoss, named_state
from placewright.capturing.rebound import Rebound, rebound
from placewright.errors import InputError, UnsupportedError
from placewright.graph.program import Role


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One tensor that the step is given: its role, its key and a fake of it.

    Attributes
    ----------
    path
        Where a parameter or buffer belongs in `ModelAndLoss`.
    """

    role: Role
    key: str
    value: Tensor
    path: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """A model with its inputs and targets, taken apart into slots and put together again."""

    model: nn.Module
    loss_fn: Loss | None
    inputs: Any
    targets: Any
    slots: tuple[Slot, ...]

    def run(self, values: Sequence[Tensor], then: Loss) -> tuple[Any, Rebound]:
        """``then(outputs, targets)``, where `values` stand in for the slots.

        They stand in until `then` returns: what it differentiates may compute parts of the
        forward pass again (activation checkpointing), and has to find the same values there.
        """
        given = iter(values)
        held = {slot.path: next(given) for slot in self.slots if slot.path}
        whole, state = ModelAndLoss(self.model, self.loss_fn, then), dict(held)
        arguments = (refilled(self.inputs, given), refilled(self.targets, given))
        with _casts_kept():
            made = torch.func.functional_call(whole, state, arguments)
        return made, rebound(held, state)


@contextmanager
def _casts_kept() -> Iterator[None]:
    """Let autocast cast a parameter once for all its readers, as eager does.

    ``make_fx`` turns that off. A gradient is then added up in another dtype: in that of the
    readers where they share a cast, in that of the parameter where they do not.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(before)


def feed(model: nn.Module, inputs: Any, targets: Any = None, loss_fn: Loss | None = None) -> Feed:
    """Fakes on the CPU of all that the step reads.

    Parameters
    ----------
    inputs
        A tuple or list of positional arguments, a dict of keyword arguments, or one tensor;
        what is no tensor inside becomes a constant of the graph.

    Raises
    ------
    InputError
        Inputs of another type.
    """
    _check_plain(model)
    inputs = as_arguments(inputs, type(model).__name__)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    parameters, buffers = named_state(model, loss_fn)
    groups: tuple[tuple[Role, Sequence[tuple[str, str, Any]]], ...] = (
        ("parameter", parameters),
        ("buffer", buffers),
        ("input", [(key, "", leaf) for key, leaf in leaves_of(inputs)]),
        ("target", [(key, "", leaf) for key, leaf in leaves_of(targets)]),
    )
    slots = tuple(
        Slot(role, key, _fake(mode, value, f"{role} {key}"), path)
        for role, members in groups
        for key, path, value in members
        if isinstance(value, Tensor)
    )
    return Feed(model, loss_fn, inputs, targets, slots)


def as_arguments(inputs: Any, model: str) -> Any:
    """Inputs as a tuple or list of positional arguments, or a dict of keyword arguments."""
    if isinstance(inputs, Tensor):
        return (inputs,)
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if not isinstance(inputs, tuple | list):
        raise InputError(
            "inputs must be a tuple, a list, a dict or a tensor",
            where=f"model {model}",
            by=f"got {type(inputs).__name__}",
        )
    return inputs


def _check_plain(model: nn.Module) -> None:
    """Compiled and scripted modules hide their Python code from a trace."""
    compiled = hasattr(model, "_orig_mod")
    if compiled or isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError(
            "a compiled model" if compiled else "a scripted model",
            where=f"model {type(model).__name__}",
            hint="capture the plain module that it was made from",
        )


def _fake(mode: FakeTensorMode, value: Tensor, where: str) -> Tensor:
    if is_lazy(value):
        raise InputError(
            "a lazy module has not seen its first input yet",
            where=where,
            hint="call the model once before it is captured",
        )
    if value.layout is not torch.strided:
        raise UnsupportedError(f"a tensor of layout {value.layout}", where=where)
    with mode:
        # On the CPU even where the model is on the meta device: kernels are chosen by device.
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return fake.requires_grad_(value.requires_grad and value.is_leaf)
