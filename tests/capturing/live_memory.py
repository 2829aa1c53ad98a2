"""Measure the bytes of live storages of one step, call by call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from placewright.capturing.program_calls import materialise, resolve_target
from placewright.graph.graph import Graph, Ref


def peak_bytes(graph: Graph, state: dict[str, Tensor]) -> int:
    """Most bytes of the storages behind the graph's tensors; those of `state` are not counted.

    A value is let go when its last reader has ended, or at once if it has none.
    """
    calls, values = graph.program.instructions, dict[str, Any](state)
    last = {t.name: max(map(graph.operator_names.index, t.consumers)) for t in graph.tensors}
    resident = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    peak = 0

    def filled(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument.name]
        return [filled(part) for part in argument] if isinstance(argument, list) else argument

    with torch.no_grad():
        for k, call in enumerate(calls):
            args = filled(materialise(call.args))
            kwargs = {key: filled(materialise(value)) for key, value in call.kwargs.items()}
            made = resolve_target(call.target)(*args, **kwargs)
            parts = made if isinstance(made, tuple | list) else (made,)
            values.update((n, p) for n, p in zip(call.results, parts, strict=False) if n in last)
            storages = [v.untyped_storage() for n, v in values.items() if n not in state]
            held = {s.data_ptr(): s.nbytes() for s in storages}
            peak = max(peak, sum(size for at, size in held.items() if at not in resident))
            values = {n: v for n, v in values.items() if last.get(n, len(calls)) > k}
            del args, kwargs, made, parts, storages
    return peak
