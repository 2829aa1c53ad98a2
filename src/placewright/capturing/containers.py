"""Tensors inside nested inputs, targets and outputs: find them, replace them, copy them.

PyTorch's pytrees flatten tuples, lists and dicts. A pytree's leaf may hold tensors, too: a cache of
past keys and values, a dataclass, a batch with methods. Its attributes are searched, and tensors
are replaced in a copy of it, never in the caller's object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from placewright.errors import InputError

_WHOLE = (
    *(str, bytes, int, float, complex, bool, range, slice, type(None), type, Enum),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType, nn.Module),
    *(torch.dtype, torch.device, torch.Generator, torch.Size),
)
"""Values that are not searched and not copied."""


def _flat(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves and containers; a size of PyTorch is a leaf, which pytrees make a tuple of."""
    return tree_flatten(tree, is_leaf=lambda part: isinstance(part, torch.Size))


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of nested containers with their positions as keys.

    A leaf that holds tensors is followed by them, as ``2.layers.0.keys``.
    """
    found: list[tuple[str, Any]] = []

    def note(path: str, tensor: Tensor) -> Tensor:
        found.append((path, tensor))
        return tensor

    for k, leaf in enumerate(_flat(tree)[0]):
        if not isinstance(leaf, Tensor):
            found.append((str(k), leaf))
        _Copy(note).of(str(k), leaf)
    return found


def tensors_of(tree: Any) -> list[Tensor]:
    """All tensors, in the order of `leaves_of`."""
    return [leaf for _, leaf in leaves_of(tree) if isinstance(leaf, Tensor)]


def constants_of(tree: Any) -> tuple[tuple[str, Any], ...]:
    """What is no tensor in nested containers: numbers, strings, classes, by where it is.

    A capture has these values built in.
    """
    walk = _Constants()
    leaves, spec = _flat(tree)
    for k, leaf in enumerate(leaves):
        walk.of(str(k), leaf)
    return (("", str(spec)), *walk.found)


def in_order_of(example: Any, tree: Any) -> Any:
    """`tree` with the containers of `example` where it has their content.

    Dicts in its order of keys, tuples where a data loader made lists of them: by the order of the
    leaves tensors are told apart.
    """
    if type(example) is dict and isinstance(tree, dict) and example.keys() == tree.keys():
        return {key: in_order_of(part, tree[key]) for key, part in example.items()}
    plain = type(example) in (list, tuple) and type(tree) in (list, tuple)
    if plain and len(example) == len(tree):
        return type(example)(map(in_order_of, example, tree))
    return tree


def demand_constants(example: Any, tree: Any, role: str) -> None:
    """Raise `InputError` where a batch has other values beside tensors than the example.

    `role`: ``input`` or ``target``.
    """
    known, found = dict(constants_of(example)), dict(constants_of(tree))
    for path in dict.fromkeys((*known, *found)):
        values = [repr(x[path]) if path in x else "a tensor" for x in (found, known)]
        if values[0] != values[1]:
            raise InputError(
                f"{role} {path} differs from the example's".replace("  ", " "),
                where="Trainer.step",
                by=f"{values[0]}, the example has {values[1]}",
                hint="what is no tensor is a constant of the captured step: make a tensor "
                "of it, or place the model with such an example",
            )


def memory_of(tensor: Tensor) -> int:
    """Identity of the storage, which views share; 0 for tensors without one."""
    key: int = tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0
    return key


def layouts_of(tree: Any) -> tuple[Any, ...]:
    """What a capture depends on of the tensors in nested containers, beside their values.

    Shapes and dtypes. Strides too: some kernels round differently on another layout. And what code
    may ask for: whether a tensor requires a gradient, its class and attributes, which are the same.
    """
    first: dict[int, int] = {}
    tensors = ((key, leaf) for key, leaf in leaves_of(tree) if isinstance(leaf, Tensor))
    return tuple(
        (key, *_layout(leaf), first.setdefault(id(leaf), k))
        for k, (key, leaf) in enumerate(tensors)
    )


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    # Strides of dimensions of one element are arbitrary, and no kernel uses them.
    strides = tuple(stride if size > 1 else 0 for size, stride in sizes)
    strides = strides if tensor.numel() else ()
    own = repr(constants_of(vars(tensor))) if vars(tensor) else ""
    asked = (tensor.requires_grad, type(tensor), own)
    return tuple(tensor.shape), strides, str(tensor.dtype), *asked


def refilled(tree: Any, values: Iterator[Any]) -> Any:
    """A copy of the containers with `values` in the place of the tensors, in order."""
    leaves, spec = _flat(tree)
    filled = [_Copy(lambda *_: next(values)).of("", leaf) for leaf in leaves]
    return tree_unflatten(filled, spec)


class StepBatch:
    """Inputs and targets of a step, copied once.

    Their tensors are the same in every step, so that in-place changes persist; the containers
    around them are new in every step.

    `tensors`: the copies, as ``input:0`` or ``target:0``.
    """

    def __init__(self, inputs: Any, targets: Any = None) -> None:
        self.whole = (inputs, targets)
        named = zip(("input", "target"), self.whole, strict=True)
        self.tensors = {
            f"{role}:{key}": _own(leaf)
            for role, tree in named
            for key, leaf in leaves_of(tree)
            if isinstance(leaf, Tensor)
        }
        self._before = {name: tensor._version for name, tensor in self.tensors.items()}

    def arguments(self) -> tuple[Any, Any]:
        """Inputs and targets."""
        inputs, targets = self.whole
        values = iter(self.tensors.values())
        return refilled(inputs, values), refilled(targets, values)

    def changed(self) -> dict[str, Tensor]:
        """Tensors that have been changed in place."""
        return {n: t for n, t in self.tensors.items() if t._version != self._before[n]}


def _own(tensor: Tensor) -> Tensor:
    """A copy with the same strides that requires a gradient where the tensor does."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class _Copy:
    """Copies an object down to its tensors, each replaced by ``each(path, tensor)``."""

    def __init__(self, each: Callable[[str, Tensor], Any]) -> None:
        self.each = each
        self.made: dict[int, Any] = {}

    def of(self, path: str, value: Any) -> Any:
        """The copy of `value`, which is at `path`; an object in two places is copied once."""
        if isinstance(value, Tensor):
            return self.each(path, value)
        if isinstance(value, _WHOLE):
            return value
        if id(value) not in self.made:
            self.made[id(value)] = self._copied(path, value)
        return self.made[id(value)]

    def _copied(self, path: str, value: Any) -> Any:
        if isinstance(value, tuple):
            parts = [self.of(f"{path}.{k}", part) for k, part in enumerate(value)]
            return type(value)._make(parts) if hasattr(value, "_make") else type(value)(parts)
        try:
            made = self.made[id(value)] = copy.copy(value)
        except Exception:  # locks, files, handles: nothing that holds tensors
            return value
        if isinstance(value, list):
            made[:] = [self.of(f"{path}.{k}", part) for k, part in enumerate(value)]
        elif isinstance(value, dict):
            for key, part in value.items():
                made[key] = self.of(f"{path}.{key}", part)
        for key, part in vars(made).items() if hasattr(made, "__dict__") else ():
            vars(made)[key] = self.of(f"{path}.{key}", part)
        for key, slot in _filled_slots(made):
            slot.__set__(made, self.of(f"{path}.{key}", slot.__get__(made)))
        return made


def _filled_slots(value: Any) -> Iterator[tuple[str, MemberDescriptorType]]:
    """Attributes that an object keeps in ``__slots__``, as a slotted dataclass does."""
    for kind in type(value).__mro__:
        for key, slot in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(slot, MemberDescriptorType) and hasattr(value, key):
                yield key, slot


class _Constants(_Copy):
    """Notes every value that is neither a tensor nor searched for tensors."""

    def __init__(self) -> None:
        super().__init__(lambda _, tensor: tensor)
        self.found: list[tuple[str, Any]] = []

    def of(self, path: str, value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            content = sha256(value.tobytes()).hexdigest()
            self.found.append((path, (str(value.dtype), value.shape, content)))
        elif isinstance(value, str | int | float | complex | bool | type(None)):
            self.found.append((path, value))
        elif isinstance(value, _WHOLE) or not _has_parts(value):
            self.found.append((path, repr(value)))
        return super().of(path, value)


def _has_parts(value: Any) -> bool:
    """Whether what it holds is looked into, and noted part by part."""
    holds = isinstance(value, Tensor | tuple | list | dict) or bool(getattr(value, "__dict__", ()))
    return holds or any(_filled_slots(value))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some rows of a batch.

    Attributes
    ----------
    start, rows
        Along the first dimension of every tensor that has as many rows as the batch.
    share
        By which its loss is multiplied.
    """

    start: int
    rows: int
    batch_rows: int
    share: float

    def part(self, value: Tensor) -> Tensor:
        """The rows of a tensor; all of a tensor that has other rows than the batch."""
        if value.dim() == 0 or value.shape[0] != self.batch_rows:
            return value
        return value.narrow(0, self.start, self.rows)

    def parts(self, tree: Any) -> Any:
        """The same containers with the rows of every tensor."""
        return refilled(tree, iter([self.part(value) for value in tensors_of(tree)]))


def micro_batches(tensors: Sequence[Tensor], count: int, reduction: str) -> Iterator[MicroBatch]:
    """Cut a batch; the first ones are a row larger where its rows are no multiple of `count`.

    Raises `InputError`: the batch has fewer rows than micro-batches.

    Parameters
    ----------
    tensors
        Inputs and targets; the first one with a dimension says how many rows the batch has.
    reduction
        ``mean``: every loss is a mean over samples, and counts by the share of its rows, so that
        the gradients are those of the mean over the batch; ``sum``: losses are added up.
    """
    rows = next((int(value.shape[0]) for value in tensors if value.dim()), 0)
    if rows < count:
        raise InputError(
            "a batch cannot be cut into more micro-batches than it has rows",
            where="inputs, first dimension",
            by=f"{rows} rows, {count} micro-batches",
            hint="give larger batches, or fewer micro-batches",
        )
    start = 0
    for k in range(count):
        own = rows // count + (k < rows % count)
        yield MicroBatch(start, own, rows, own / rows if reduction == "mean" else 1.0)
        start += own
