"""What a step is fed: fakes of parameters, buffers, inputs and targets, flat and with names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from placewright.errors import InputError, UnsupportedError
from placewright.graph.program import Role


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

    def call(self, values: Sequence[Tensor]) -> Any:
        """The model's outputs, where `values` stand in for the slots."""
        given = iter(values)
        state = {slot.key: next(given) for slot in self.slots if slot.role in _STATE}
        inputs = _refill(self.inputs, given)
        if isinstance(inputs, dict):
            return torch.func.functional_call(self.model, state, (), inputs)
        return torch.func.functional_call(self.model, state, tuple(inputs))

    def target(self, values: Sequence[Tensor]) -> Any:
        """The targets, where `values` stand in for the slots."""
        last = sum(slot.role != "target" for slot in self.slots)
        return _refill(self.targets, iter(values[last:]))


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


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of nested containers with their positions as keys."""
    return [(str(k), leaf) for k, leaf in enumerate(tree_flatten(tree)[0])]


def _refill(tree: Any, values: Iterator[Tensor]) -> Any:
    leaves, spec = tree_flatten(tree)
    filled = [next(values) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tree_unflatten(filled, spec)


def _fake(mode: FakeTensorMode, value: Tensor, where: str) -> Tensor:
    if value.layout is not torch.strided:
        raise UnsupportedError(f"a tensor of layout {value.layout}", where=where)
    with mode:
        # On the CPU even where the model is on the meta device: kernels are chosen by device.
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return fake.requires_grad_(value.requires_grad and value.is_leaf)
