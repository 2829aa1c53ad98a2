"""Values that a trace knows although its tensors are fake: those made of nothing but constants.

A model may look at such a value: transformers builds positions with ``arange`` and leaves out
the mask of packed sequences where they count on by one. Eager mode sees the value; the trace
computes it, so that both take the same branch. What depends on a parameter or an input stays
unknown, and branching on it is refused.
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

from placewright.capturing.draws import is_draw

aten = torch.ops.aten

_MASKING = "transformers.masking_utils"


@contextmanager
def known_values_seen() -> Iterator[None]:
    """Let transformers look at values that are known: it asks whether a tensor is being traced."""
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
    """The number in a tensor of one element, where it is known."""
    value = known_value(tensor)
    return NotImplemented if value is None else value.item()


KNOWN_SCALARS = {aten._local_scalar_dense.default: known_scalar}
"""Decomposition table for the trace."""


def known_value(tensor: Tensor) -> Tensor | None:
    """What a fake tensor would hold; ``None`` if that depends on more than constants."""
    mode = get_proxy_mode()
    slot: Any = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    if mode is None or slot is None:
        return None
    needed = _needed(slot.proxy.node)
    if needed is None or _changed_in_place(mode.tracer.graph, needed):
        return None
    values: dict[fx.Node, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        for node in reversed(needed):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    made: Tensor = values[slot.proxy.node]
    return made


def _needed(last: fx.Node) -> list[fx.Node] | None:
    """A node and all that it is computed from, later ones first; ``None`` if more is needed."""
    waiting, found = [last], dict[fx.Node, None]()
    while waiting:
        node = waiting.pop()
        if node.op != "call_function" or is_draw(node) or _is_mutable(node):
            return None
        if node not in found:
            found[node] = None
            waiting += node.all_input_nodes
    order = {node: k for k, node in enumerate(last.graph.nodes)}
    return sorted(found, key=order.__getitem__, reverse=True)


def _changed_in_place(graph: fx.Graph, needed: list[fx.Node]) -> bool:
    among = set(needed)
    return any(_is_mutable(node) and among & set(node.all_input_nodes) for node in graph.nodes)


def _is_mutable(node: fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))
