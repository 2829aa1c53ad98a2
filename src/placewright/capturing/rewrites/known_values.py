"""Known values: tensors of a fake trace that are computed from constants alone.

A model may branch on such a value: transformers builds positions with ``arange`` and leaves out
the mask of packed sequences where they are consecutive. A fake tensor has no value to branch on
(PyTorch 2.13 raises a data-dependent error), so the value is computed from the recorded nodes, and
the trace takes the branch that eager mode takes. A value that depends on a parameter or an input
stays unknown, and branching on it is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
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
