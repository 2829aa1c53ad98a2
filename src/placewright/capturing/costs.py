"""What an operator costs as far as shapes tell: bytes, and a signature of its call."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch

from placewright.capturing.draft import Draft, reads
from placewright.graph.dtypes import NO_DTYPE
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Const, Ref

_LOOKUPS = (
    "aten.embedding.default",
    "aten.gather.default",
    "aten.index.Tensor",
    "aten.index_select.default",
)
"""Read from their first argument what they return, however large it is."""


def spec_bytes(spec: TensorSpec) -> int:
    """Bytes of the elements of one value."""
    if spec.dtype == NO_DTYPE:
        return 0
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return math.prod(spec.shape) * dtype.itemsize


def held_bytes(spec: TensorSpec) -> int:
    """Bytes of memory that a value of its own takes, gaps between its elements included."""
    elements = spec_bytes(spec)
    if not elements or not spec.stride:
        return elements
    last = sum((n - 1) * step for n, step in zip(spec.shape, spec.stride, strict=True))
    return max(elements, (last + 1) * elements // math.prod(spec.shape))


def bytes_accessed(draft: Draft, specs: Mapping[str, TensorSpec]) -> float:
    """Bytes read and written, every argument and every result once.

    Of the first argument of a lookup only what the indices pick is read: as much as the result.
    """
    made = sum(map(spec_bytes, draft.outputs))
    read = [spec_bytes(specs[name]) for name in reads(draft)]
    if draft.call.target in _LOOKUPS:
        read[0] = made
    changed = sum(spec_bytes(specs[name]) for name in draft.call.mutates)
    return float(sum(read) + changed + made)


def signature(draft: Draft, specs: Mapping[str, TensorSpec]) -> str:
    """The operation and a digest of shapes, dtypes, strides and constants."""
    call = draft.call
    told = _told((call.args, tuple(sorted(call.kwargs.items())), call.results == ()), specs)
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    return f"{call.target}/{digest}"


def _told(argument: Any, specs: Mapping[str, TensorSpec]) -> str:
    if isinstance(argument, Ref):
        spec = specs[argument.name]
        return f"<{spec.dtype}{spec.shape}{spec.stride}>"
    if isinstance(argument, Const):
        return f"<{argument.kind}:{argument.value}>"
    if isinstance(argument, tuple | list):
        return "(" + ",".join(_told(part, specs) for part in argument) + ")"
    return repr(argument)
