"""What an operator costs as far as shapes tell: FLOPs, bytes, and a signature."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from placewright.capture.draft import Draft, reads
from placewright.graph.dtypes import NO_DTYPE
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Const, Ref

aten = torch.ops.aten


def flops(node: fx.Node) -> float:
    """Floating-point operations of a node, by PyTorch's own formulas; 0 where it has none."""
    packet = getattr(node.target, "overloadpacket", None)
    args = fx.node.map_arg(node.args, lambda n: n.meta["val"])
    kwargs = fx.node.map_arg(node.kwargs, lambda n: n.meta["val"])
    if packet in _RECURRENT:
        return float(_RECURRENT[packet]) * _recurrent_flops(args)
    if packet is None or packet not in flop_registry:
        return 0.0
    return float(flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))


def _recurrent_flops(args: Any) -> float:
    """One layer over a sequence: each step multiplies by both weight matrices."""
    steps, *weights = cast(Sequence[Tensor], args[:3])
    return 2.0 * math.prod(steps.shape[:-1]) * sum(weight.numel() for weight in weights)


_RECURRENT = {aten.mkldnn_rnn_layer: 1.0, aten.mkldnn_rnn_layer_backward: 2.0}
"""Passes over the weights: the backward makes gradients of weights and of inputs."""

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
