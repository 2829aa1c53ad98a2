"""Validation of a layer problem: shapes, signs, names, degrees, links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import InputError

if TYPE_CHECKING:
    from placewright.layers.problem import LayerProblem, Variants


MOST_SAMPLES = 10**12
"""Of a step: micro-batches are divisors of their number, which are looked for up to its root."""


def check_problem(p: LayerProblem) -> None:
    """Raise where the problem is none.

    Raises `InputError`, which names the field, the layer or the worker that is wrong.
    """
    if p.n == 0 or p.w == 0:
        raise InputError("a problem needs layers and workers", where=p.name)
    if not 1 <= p.global_batch <= MOST_SAMPLES:
        limit = "at least 1" if p.global_batch < 1 else f"at most {MOST_SAMPLES:.0e}"
        raise InputError(f"global_batch must be {limit}", where=p.name, by=f"{p.global_batch:.3g}")
    if not 0 < p.alone <= 1:
        raise InputError("alone must be in (0, 1]", where=p.name, by=f"{p.alone}")
    if not p.degrees or p.degrees[0] != 1 or list(p.degrees) != sorted(set(p.degrees)):
        by = f"got {p.degrees}"
        raise InputError("degrees must ascend from 1", where=p.name, by=by)
    _check_names(p)
    _check_shapes(p)
    _check_values(p)
    _check_graph(p)
    _check_options(p)
    if p.variants is not None:
        _check_variants(p, p.variants)


def _check_names(p: LayerProblem) -> None:
    for kind, names in (("layer", p.layer_names), ("worker", p.worker_names)):
        twice, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise InputError(f"the {kind} {twice!r} is there twice", where=p.name)


def _check_shapes(p: LayerProblem) -> None:
    n, w, k, t = p.n, p.w, len(p.kind_names), len(p.degrees)
    nodes, edges = len(p.node_names), len(p.edge_source)
    table = (k, t, len(p.sizes), n)
    shapes = {
        "parameters": (n, t),
        "output_bytes": (n, t),
        "activation_bytes": (n, t),
        "forward_s": table,
        "backward_s": table,
        "working_bytes": (n, t),
        "update_bytes": (n, t),
        "tensor_bytes": (n, 2),
        "flops": (n,),
        "edge_target": (edges,),
        "edge_bytes": (edges,),
        "worker_kind": (w,),
        "worker_node": (w,),
        "memory_bytes": (w,),
        "framework_bytes": (w,),
        "optimizer_s": (k,),
        "optimizer_fixed_s": (k,),
        "begin_s": (k,),
        "pack_s": (k,),
        "gather_s": (n,),
        "scatter_s": (n,),
        "send_s": (k,),
        "receive_s": (k,),
        "message_s": (k,),
        "link_index": (nodes, nodes),
    }
    _refuse_other_shapes(p, shapes, p.name)
    if len(p.layer_kinds) != n:
        raise InputError("layer_kinds needs an entry per layer", where=p.name)


def _refuse_other_shapes(holder: object, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    for key, shape in shapes.items():
        found = getattr(holder, key).shape
        if found != shape:
            by = f"{found}, expected {shape}"
            raise InputError(f"{key} has the wrong shape", where=where, by=by)


def _check_values(p: LayerProblem) -> None:
    for key in (
        "parameters",
        "output_bytes",
        "working_bytes",
        "update_bytes",
        "tensor_bytes",
        "edge_bytes",
        "memory_bytes",
        "begin_s",
        "optimizer_s",
        "optimizer_fixed_s",
        "pack_s",
        "gather_s",
        "scatter_s",
        "send_s",
        "receive_s",
        "message_s",
    ):
        if not (getattr(p, key) >= 0).all():
            raise InputError(f"{key} must be numbers >= 0", where=p.name)
    for key in ("forward_s", "backward_s", "activation_bytes", "framework_bytes"):
        if (getattr(p, key) < 0).any():
            raise InputError(f"{key} must be numbers >= 0", where=p.name)
    for key in ("forward_s", "backward_s"):
        if np.isinf(getattr(p, key)).any():
            hint = "leave out times that were not measured: null in a file, NaN in Python"
            raise InputError(f"{key} must be finite", where=p.name, hint=hint)
    if not np.isfinite(p.parameters[:, 0]).all():
        i = int(np.flatnonzero(~np.isfinite(p.parameters[:, 0]))[0])
        raise InputError("parameters at degree 1 must be finite", where=p.layer_names[i])
    if not (p.sizes > 0).all() or (np.diff(p.sizes) <= 0).any():
        raise InputError("sizes must ascend from above 0", where=p.name)
    for key, top in (
        ("worker_kind", len(p.kind_names)),
        ("worker_node", len(p.node_names)),
        ("edge_source", p.n),
        ("edge_target", p.n),
    ):
        values = getattr(p, key)
        if len(values) and not (values.min() >= 0 and values.max() < top):
            raise InputError(f"{key} names something that does not exist", where=p.name)
    if (p.link_index >= len(p.links)).any():
        raise InputError("link_index names a link that does not exist", where=p.name)


def _check_graph(p: LayerProblem) -> None:
    if (p.edge_source >= p.edge_target).any():
        e = int(np.flatnonzero(p.edge_source >= p.edge_target)[0])
        a, b = p.layer_names[p.edge_source[e]], p.layer_names[p.edge_target[e]]
        raise InputError(
            "layers must be in topological order", where=p.name, by=f"edge from {a!r} to {b!r}"
        )
    for a, b in p.tied:
        if not (0 <= a < p.n and 0 <= b < p.n):
            raise InputError("tied names a layer that does not exist", where=p.name)
    for refusal in p.refusals:
        if not 0 <= refusal.layer < p.n:
            raise InputError("refusals name a layer that does not exist", where=p.name)


def _check_options(p: LayerProblem) -> None:
    if p.micro_batches < 0 or (p.micro_batches and p.global_batch % p.micro_batches):
        raise InputError(
            "micro_batches must divide the global batch",
            where=p.name,
            by=f"{p.micro_batches} micro-batches of {p.global_batch} samples",
            hint="0 leaves their number to the planner",
        )
    if not p.zero_stages or not set(p.zero_stages) <= {0, 1, 2, 3}:
        by = f"got {p.zero_stages}"
        raise InputError("zero_stages must be some of 0, 1, 2 and 3", where=p.name, by=by)


def _check_variants(p: LayerProblem, v: Variants) -> None:
    where, inner = f"{p.name}: variants", (len(p.degrees), len(v.names))
    by_layer = dict.fromkeys(
        ("time_s", "parameter_bytes", "in_flight_bytes", "fixed_bytes"), (p.n, *inner)
    )
    by_edge = dict.fromkeys(("sync_in_bytes", "sync_out_bytes"), (len(p.edge_source), *inner))
    _refuse_other_shapes(v, by_layer | by_edge, where)
    for key in by_layer | by_edge:
        if not (getattr(v, key) >= 0).all():
            raise InputError(f"{key} must be numbers >= 0", where=where)
    if not v.names or v.batch_samples < 1 or not v.bandwidth > 0:
        raise InputError(
            "needs names, batch_samples of at least 1 and a bandwidth above 0",
            where=where,
            by=f"{len(v.names)} names, {v.batch_samples} samples, {v.bandwidth:g} bytes/s",
        )
