"""What a step is fed: fakes of parameters, buffers, inputs and targets, flat and with names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten, tree_unflatten

from placewright.capture.rebound import Rebound, rebound
from placewright.errors import InputError, UnsupportedError
from placewright.graph.program import Role

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One tensor that the step is given: its role, its key and a fake of it."""

    role: Role
    key: str
    value: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """A model with its inputs and targets, taken apart into slots and put together again."""

    model: nn.Module
    inputs: Any
    targets: Any
    slots: tuple[Slot, ...]

    def outputs(self, values: Sequence[Tensor]) -> tuple[Any, Rebound]:
        """The model's outputs, where `values` stand in for the slots."""
        return self._run(values, lambda outputs, _: outputs)

    def loss(self, values: Sequence[Tensor], loss_fn: Loss) -> tuple[Any, Rebound]:
        """The loss, where `values` stand in for the slots."""
        return self._run(values, loss_fn)

    def _run(self, values: Sequence[Tensor], then: Loss) -> tuple[Any, Rebound]:
        given = iter(values)
        held = {f"model.{slot.key}": next(given) for slot in self.slots if slot.role in _STATE}
        whole, state = _Whole(self.model, then), dict(held)
        arguments = (_refill(self.inputs, given), _refill(self.targets, given))
        made = torch.func.functional_call(whole, state, arguments)
        return made, rebound(held, state)


class _Whole(nn.Module):
    """Model and loss in one: a loss may read the model's parameters, to decay them say."""

    def __init__(self, model: nn.Module, then: Loss) -> None:
        super().__init__()
        self.model, self.then, self.training = model, then, model.training

    def forward(self, inputs: Any, targets: Any) -> Any:
        if isinstance(inputs, dict):
            return self.then(self.model(**inputs), targets)
        return self.then(self.model(*inputs), targets)


_STATE = ("parameter", "buffer")


def feed(model: nn.Module, inputs: Any, targets: Any = None) -> Feed:
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
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list | dict):
        raise InputError(
            "inputs must be a tuple, a list, a dict or a tensor",
            where=f"model {type(model).__name__}",
            by=f"got {type(inputs).__name__}",
        )
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    groups: tuple[tuple[Role, list[tuple[str, Any]]], ...] = (
        ("parameter", list(model.named_parameters())),
        ("buffer", list(model.named_buffers())),
        ("input", leaves_of(inputs)),
        ("target", leaves_of(targets)),
    )
    slots = tuple(
        Slot(role, key, _fake(mode, value, f"{role} {key}"))
        for role, members in groups
        for key, value in members
        if isinstance(value, Tensor)
    )
    return Feed(model, inputs, targets, slots)


def _check_plain(model: nn.Module) -> None:
    """Compiled and scripted modules hide their Python code from a trace."""
    compiled = hasattr(model, "_orig_mod")
    if compiled or isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError(
            "a compiled model" if compiled else "a scripted model",
            where=f"model {type(model).__name__}",
            hint="capture the plain module that it was made from",
        )


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of nested containers with their positions as keys."""
    return [(str(k), leaf) for k, leaf in enumerate(tree_flatten(tree)[0])]


def _refill(tree: Any, values: Iterator[Tensor]) -> Any:
    leaves, spec = tree_flatten(tree)
    filled = [next(values) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tree_unflatten(filled, spec)


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
