"""Fake tensors of a trace: values that are known all the same, and shapes as on a CPU.

A tensor that is computed from constants alone has a known value, and a model may branch on it:
transformers builds positions with ``arange`` and leaves out the mask of packed sequences where they
are consecutive. A fake tensor has no value to branch on (PyTorch 2.13 raises a data-dependent
error), so the value is computed from the recorded nodes, and the trace takes the branch that eager
mode takes. A value that depends on a parameter or an input stays unknown, and branching on it is an
error.

Shape rules for fake tensors where PyTorch's rule differs from its CPU kernel (torch 2.13).

A program gives the shape and dtype of every value before it runs, and receivers rely on them.

- ``_grouped_mm`` takes every dtype; PyTorch's rule admits bfloat16 alone (experts in float32).
- The gradient of a layer normalisation's input is row-major.
- Normalisation of a bfloat16 input with float32 parameters, as under autocast, keeps its
  statistics in float32 and gives the input a gradient of the input's dtype; PyTorch's rules say
  otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, _decomp, _meta_registrations, fx
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import _disable_current_modes

from placewright.capturing.rewrites.random_state import is_random

aten = torch.ops.aten

_MASKING = "transformers.masking_utils"


@contextmanager
def known_values_readable() -> Iterator[None]:
    """Let transformers read known values: its ``is_tracing`` says no for tensors that have one."""
    masking = sys.modules.get(_MASKING)
    if masking is None or not hasattr(masking, "is_tracing"):
        yield
        return
    traced = masking.is_tracing

    def is_tracing(tensor: Any = None) -> bool:
        unknown = bool(traced(tensor))
        return unknown and (not isinstance(tensor, FakeTensor) or known_value(tensor) is None)

    with patch.object(masking, "is_tracing", is_tracing):
        yield


def known_scalar(tensor: Tensor) -> Any:
    """The number in a tensor of one element, `NotImplemented` where it is unknown."""
    value = known_value(tensor)
    return NotImplemented if value is None else value.item()


KNOWN_SCALARS = {aten._local_scalar_dense.default: known_scalar}
"""Decomposition table for the trace."""


def known_value(tensor: Tensor) -> Tensor | None:
    """The value of a fake tensor, ``None`` if it depends on more than constants."""
    mode = get_proxy_mode()
    slot: Any = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    if mode is None or slot is None:
        return None
    ancestors = _constant_ancestors(slot.proxy.node)
    if ancestors is None or _changed_in_place(mode.tracer.graph, ancestors):
        return None
    values: dict[fx.Node, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        # Later ones come first in the list: so every argument is there before it is read.
        for node in reversed(ancestors):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    made: Tensor = values[slot.proxy.node]
    return made


def _constant_ancestors(last: fx.Node) -> list[fx.Node] | None:
    """A node and its ancestors, later ones first; ``None`` if not all are constant."""
    pending, found = [last], dict[fx.Node, None]()
    while pending:
        node = pending.pop()
        if node.op != "call_function" or is_random(node) or _is_mutable(node):
            return None
        if node not in found:
            found[node] = None
            pending += node.all_input_nodes
    order = {node: k for k, node in enumerate(last.graph.nodes)}
    return sorted(found, key=order.__getitem__, reverse=True)


def _changed_in_place(graph: fx.Graph, ancestors: list[fx.Node]) -> bool:
    among = set(ancestors)
    # The whole graph: an update writes into a tensor that was made before it, so it is no ancestor.
    return any(_is_mutable(node) and among & set(node.all_input_nodes) for node in graph.nodes)


def _is_mutable(node: fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


_GROUPED = "_meta_grouped_mm_common"


@contextmanager
def shape_rules() -> Iterator[None]:
    """Replace PyTorch's rules by those of this module."""
    with (
        patch.object(_meta_registrations, _GROUPED, _grouped(_meta_registrations)),
        patch.dict(fake_impls.op_implementations_dict, _NORMS),
        patch.dict(_decomp.meta_table, _NORMS),  # else a decomposition goes first
    ):
        yield


def _grouped(rules: Any) -> Callable[..., Tensor]:
    bfloat16_only = getattr(rules, _GROUPED)

    def grouped_mm(mat_a: Tensor, mat_b: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("scale_a") is not None or mat_a.dtype == torch.bfloat16:
            return bfloat16_only(mat_a, mat_b, *args, **kwargs)  # type: ignore[no-any-return]
        made: Tensor = rules._create_grouped_mm_output_tensor(
            mat_a, mat_b, kwargs.get("offs"), kwargs.get("out_dtype")
        )
        return made

    return grouped_mm


def _statistics(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """The output has the input's dtype, the statistics that of the parameters."""
    x, *others = [part for part in args if isinstance(part, Tensor)]
    kept = next((other.dtype for other in others), x.dtype)
    return _made(mode, operation, args, kwargs, (x.dtype, kept, kept))


def _as_suggested(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """As `_statistics`; the output has channels last where the input has, else it is row-major."""
    first, *others = _statistics(mode, operation, *args, **kwargs)
    with mode:
        suggested = torch._prims_common.suggest_memory_format(args[0])
        first = torch.empty_like(first, memory_format=suggested)
    return (first, *others)


def _untrained(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """As `_as_suggested`; a CPU keeps no statistics where running ones are used."""
    first, *others = _as_suggested(mode, operation, *args, **kwargs)
    with mode:
        return (first, *(torch.empty(0, dtype=other.dtype) for other in others))


def _gradients(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradient of the input has the input's dtype, the others are as PyTorch says."""
    return _made(mode, operation, args, kwargs, (args[1].dtype,))


def _row_major_gradients(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradient of the input is row-major, whatever the strides of the input."""
    first, *others = _gradients(mode, operation, *args, **kwargs)
    if first is not None:
        with mode:
            first = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    return (first, *others)


_NORMS = {
    aten.native_group_norm.default: _statistics,
    aten.native_layer_norm.default: _statistics,
    aten._native_batch_norm_legit.default: _as_suggested,
    aten._native_batch_norm_legit_functional.default: _as_suggested,
    aten._native_batch_norm_legit.no_stats: _as_suggested,
    aten._native_batch_norm_legit_no_training.default: _untrained,
    aten.native_group_norm_backward.default: _gradients,
    aten.native_layer_norm_backward.default: _row_major_gradients,
}


def _made(
    mode: Any, operation: Any, args: Any, kwargs: Any, dtypes: tuple[torch.dtype, ...]
) -> tuple[Any, ...]:
    """The results of PyTorch's rule, the first ones converted to `dtypes`."""
    with in_kernel_invocation_manager(mode):
        made = list(operation(*args, **kwargs))
        for k, dtype in enumerate(dtypes):
            if made[k] is not None and made[k].dtype != dtype:
                made[k] = torch.empty_like(made[k], dtype=dtype)
    device = next(part.device for part in args if isinstance(part, Tensor))
    return tuple(part if part is None else FakeTensor(mode, part, device) for part in made)
