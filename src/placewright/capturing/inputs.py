"""StepInputs: fakes of the parameters, buffers, inputs and targets that a step reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from placewright.capturing.containers import leaves_of, refilled
from placewright.capturing.source import Loss, ModelAndLoss, ModelSource
from placewright.errors import InputError, UnsupportedError
from placewright.graph.program import Role

Rebound: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""Buffers that a forward pass replaced (``self.mean = ...``), each with its new tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class StepInput:
    """A fake of a tensor that the step reads; `path` is its name in `ModelAndLoss`, or empty."""

    role: Role
    key: str
    value: Tensor
    path: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """A model, its inputs and its targets as a flat sequence of tensors."""

    source: ModelSource
    tensors: tuple[StepInput, ...]

    def described(self) -> str:
        """What the model is called with, for error messages: the first tensors and their types."""
        named = (("input", self.source.arguments), ("target", self.source.targets))
        leaves = [(what, *pair) for what, tree in named for pair in leaves_of(tree)]
        found = [f"{what} {key} {_kind(leaf)}" for what, key, leaf in leaves if leaf is not None]
        if not found:
            return "called without inputs"
        return "called with " + ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")

    def run(self, values: Sequence[Tensor], then: Loss) -> tuple[Any, Rebound]:
        """Compute ``then(outputs, targets)`` with `values` in place of the tensors.

        They stay in place until `then` returns: what it differentiates may compute parts of the
        forward pass again (activation checkpointing), which must read the same values.
        """
        source, remaining = self.source, iter(values)
        held = {entry.path: next(remaining) for entry in self.tensors if entry.path}
        whole, state = ModelAndLoss(source.model, source.loss_fn, then), dict(held)
        arguments = (refilled(source.arguments, remaining), refilled(source.targets, remaining))
        with _autocast_cache():
            made = torch.func.functional_call(whole, state, arguments)
        return made, _rebound(held, state)


def _kind(leaf: Any) -> str:
    """Shape and dtype of a tensor, else the class."""
    if not isinstance(leaf, Tensor):
        return type(leaf).__name__
    return f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"


@contextmanager
def _autocast_cache() -> Iterator[None]:
    """Let autocast cast a parameter once for all its readers, as eager mode does.

    ``make_fx`` (PyTorch 2.13) turns that off, which changes bits: the gradients of several readers
    are added in the dtype of the readers where they share a cast, else in the parameter's.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(before)


def step_inputs(source: ModelSource, *, scaled: bool = False) -> StepInputs:
    """Make fakes on the CPU of all tensors that a step reads.

    The last one is the number by which a `scaled` loss is multiplied. What is no tensor inside of
    inputs and targets becomes a constant of the graph.
    """
    _check_plain(source.model)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    parameters, buffers = source.members()
    groups: tuple[tuple[Role, Sequence[tuple[str, str, Any]]], ...] = (
        ("parameter", parameters),
        ("buffer", buffers),
        ("input", [(key, "", leaf) for key, leaf in leaves_of(source.arguments)]),
        ("target", [(key, "", leaf) for key, leaf in leaves_of(source.targets)]),
    )
    tensors = tuple(
        StepInput(role, key, _fake(mode, value, f"{role} {key}"), path)
        for role, members in groups
        for key, path, value in members
        if isinstance(value, Tensor)
    )
    if scaled:
        scale = _fake(mode, torch.empty((), dtype=torch.float32), "setting scale")
        tensors = (*tensors, StepInput("setting", "scale", scale))
    return StepInputs(source, tensors)


def _check_plain(model: nn.Module) -> None:
    """Raise for compiled and scripted modules, whose Python code a trace cannot see."""
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


def _rebound(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Rebound:
    """The buffers that are other tensors now; a trace does not record an assignment."""
    changed = {key: (old, after[key]) for key, old in before.items() if after[key] is not old}
    for key, (old, new) in changed.items():
        if not isinstance(new, Tensor) or new.shape != old.shape or new.dtype != old.dtype:
            now = f"{tuple(new.shape)} {new.dtype}" if isinstance(new, Tensor) else repr(new)
            raise UnsupportedError(
                "the forward pass puts something of another shape in its place",
                where=f"buffer {key.removeprefix('model.')!r}",
                by=f"{tuple(old.shape)} {old.dtype}, then {now}",
                hint="give the buffer its final shape before capturing, by calling the model once",
            )
    return tuple(changed.values())


def write_back(rebound: Rebound) -> None:
    """Write the new values into the buffers, from which the next step starts.

    All are read before one is written: a model may swap two buffers.
    """
    with torch.no_grad():
        values = [new.detach().clone() for _, new in rebound]
        for (old, _), value in zip(rebound, values, strict=True):
            old.copy_(value)


def outputs_apart(outputs: Sequence[Tensor], rebound: Rebound) -> list[Tensor]:
    """The outputs; one that is a buffer about to be overwritten, as a copy."""
    overwritten = {_storage(old) for old, _ in rebound}
    return [x.clone() if _storage(x) in overwritten else x for x in outputs]


def _storage(x: Tensor) -> int:
    """Identity of the memory; fakes have no addresses, so it is the storage object's."""
    key: int = x.untyped_storage()._cdata
    return key
