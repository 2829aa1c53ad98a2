"""Calls that read a tensor only for its shape, rewritten so that they read none.

``zeros_like(x)`` would otherwise tie itself to the device of ``x``, or move ``x`` for nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten

_EMPTY = (aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default)
_ZEROS = (aten.zeros_like.default, aten.new_zeros.default)
_ONES = (aten.ones_like.default, aten.new_ones.default)
_FULL = (aten.full_like.default, aten.new_full.default)

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def without_source(node: fx.Node) -> Call:
    """Target, arguments and keywords of `node`, without the tensor that only gave a shape."""
    made = node.meta["val"]
    as_it_is = (str(node.target), node.args, dict(node.kwargs))
    if node.target in _EMPTY:
        return "aten.empty_strided.default", (tuple(made.shape), made.stride()), _options(made)
    # The plain fills make row-major tensors; strides are kept, kernels may depend on them.
    if not isinstance(made, Tensor) or not _row_major(made):
        return as_it_is
    if node.target in _ZEROS:
        return "aten.zeros.default", (tuple(made.shape),), _options(made)
    if node.target in _ONES:
        return "aten.ones.default", (tuple(made.shape),), _options(made)
    if node.target in _FULL and not isinstance(node.args[-1], fx.Node):
        fill = node.args[1] if node.target is aten.full_like.default else node.args[2]
        return "aten.full.default", (tuple(made.shape), fill), _options(made)
    return as_it_is


def _row_major(made: Tensor) -> bool:
    """Whether the strides are those of a fresh tensor, to the letter (sizes of one included)."""
    stride, expected = 1, []
    for size in reversed(made.shape):
        expected.append(stride)
        stride *= max(size, 1)
    return tuple(made.stride()) == tuple(reversed(expected))


def _options(made: Tensor) -> dict[str, Any]:
    return {"dtype": made.dtype, "device": made.device}
