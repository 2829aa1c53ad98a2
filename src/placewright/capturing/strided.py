"""In-place operations on strided views, whose bits depend on the strides.

A kernel for CPUs computes whole vectors as far as memory goes on without gaps, and the rest
element by element. For sigmoid, tanh or exp the two round differently. Eager mode writes such a
result into the view that it was asked to change, with gaps between the rows (the gates of a GRU,
a third of a row each); the functional twin makes a dense tensor, whose rows are computed together.
These operations are replayed so that their results keep the view's strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense

aten = torch.ops.aten

_ALIKE = frozenset(
    {"add_", "sub_", "mul_", "div_", "neg_", "abs_", "copy_", "fill_", "zero_", "relu_", "clamp_"}
    | {"masked_fill_", "clamp_min_", "clamp_max_", "threshold_", "sqrt_", "round_", "floor_"}
)
"""Rounded alike in a vector and alone."""


def strided_updates(recorded: fx.Graph) -> set[fx.Node]:
    """Operations whose rounding depends on the strides, with those that made what they change."""
    found: set[fx.Node] = set()
    for node in recorded.nodes:
        if _is_strided_update(node) and node.target._opname not in _ALIKE:
            while isinstance(node, fx.Node) and _is_strided_update(node):
                found.add(node)
                node = node.args[0]
    return found


def update(node: fx.Node, args: Any, kwargs: Any) -> Tensor:
    """Do what `node` does, by its functional twin and a copy that keeps the strides."""
    changed: Tensor = args[0]
    twin = _twin(node)
    assert twin is not None
    return changed.copy_(twin(*args, **kwargs))


def _is_strided_update(node: fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return False
    changed: Any = node.args[0]
    if torch.Tag.pointwise not in target.tags or not isinstance(changed, fx.Node):
        return False
    return _twin(node) is not None and not is_dense(changed.meta["val"])


def _twin(node: fx.Node) -> Callable[..., Tensor] | None:
    target: Any = node.target
    packet = getattr(aten, target._opname.removesuffix("_"), None)
    return getattr(packet, target._overloadname, None)
