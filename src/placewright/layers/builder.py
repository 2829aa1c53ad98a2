"""Describe a chain of layers by hand: parameters, FLOPs and bytes by name, on a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from placewright.cluster.cluster import Cluster, Device
from placewright.cluster.devices import analytic_seconds
from placewright.cluster.files import load_cluster
from placewright.errors import InputError, check_known
from placewright.graph.graph import Operator
from placewright.io.arguments import Count, checked
from placewright.layers.problem import LayerProblem
from placewright.layers.workers import Workers

BACKWARD = 2.0
"""A backward pass takes so many times a forward pass, where nothing else is known."""

KEYS = ("parameters", "flops", "seconds", "output_bytes", "activation_bytes")
"""What may be said of a layer."""


@checked
def layer_chain(
    layers: Mapping[str, Mapping[str, float]],
    cluster: Cluster | str,
    global_batch: Count,
    *,
    name: str = "layers",
    **options: Any,
) -> LayerProblem:
    """A chain of layers as a problem of training, described by hand.

    Parameters
    ----------
    layers
        By name, in order; of each layer, all for one sample: ``flops`` of the forward pass, or
        ``seconds`` of it on a device of speed 1; ``output_bytes``; ``activation_bytes`` that are
        kept for the backward pass, the output by default; and ``parameters``, elements. What is
        left out is 0. FLOPs are computed by the roofline model, as products that read the weights
        once for each micro-batch; a backward pass takes twice a forward one.
    cluster
        The workers: a `Cluster`, or the name of its file or preset. Between two nodes, and inside
        one, every pair of workers is as fast as the slowest.
    global_batch
        Samples of a step.
    options
        Other fields of `LayerProblem`: ``zero_stages``, ``recompute``, ``training``, ...

    Raises
    ------
    InputError
        A key that does not exist, a number that is negative; both FLOPs and seconds, or neither.
    """
    if not layers:
        raise InputError("there is no layer", where=f"{name}: layers", hint="give at least one")
    for layer, said in layers.items():
        _check(name, layer, said)
    workers = Workers(load_cluster(cluster) if isinstance(cluster, str) else cluster)
    first = [workers.devices[int(np.argmax(workers.kind == k))] for k in range(len(workers.kinds))]
    sizes = np.unique([*(2.0 ** np.arange(int(global_batch).bit_length())), float(global_batch)])
    forward = np.array(
        [[[[_seconds(x, d, size) for x in layers.values()] for size in sizes]] for d in first]
    )
    kept = [said.get("activation_bytes", said.get("output_bytes", 0.0)) for said in layers.values()]
    links, index = workers.described_links()
    fields: dict[str, Any] = {
        "name": name,
        "layer_names": tuple(layers),
        "parameters": _column(layers, "parameters"),
        "output_bytes": _column(layers, "output_bytes"),
        "activation_bytes": np.array(kept, dtype=np.float64)[:, None],
        "flops": np.array([said.get("flops", math.nan) for said in layers.values()]),
        "sizes": sizes,
        "forward_s": forward,
        "backward_s": BACKWARD * forward,
        "worker_names": workers.cluster.device_names,
        "worker_kind": workers.kind,
        "kind_names": workers.kinds,
        "worker_node": workers.node,
        "node_names": workers.nodes,
        "memory_bytes": np.array([device.memory_bytes for device in workers.devices]),
        "links": links,
        "link_index": index,
        "global_batch": global_batch,
    }
    known = list(LayerProblem.__dataclass_fields__)
    for key in options:
        check_known("option", key, known, where=f"{name}: layer_chain")
    return LayerProblem(**(fields | options))


def _check(name: str, layer: str, said: Mapping[str, float]) -> None:
    where = f"{name}: layer {layer!r}"
    for key in said:
        check_known("key", key, KEYS, where=where)
    if ("flops" in said) == ("seconds" in said):
        by = f"got {', '.join(said) or 'nothing'}"
        raise InputError("needs either flops or seconds", where=where, by=by, hint="give one")


def _seconds(said: Mapping[str, float], device: Device, samples: float) -> float:
    """Of a forward pass of so many samples."""
    if "seconds" in said:
        return samples * said["seconds"] / device.speed
    moved = samples * said.get("output_bytes", 0.0) + 4.0 * said.get("parameters", 0.0)
    product = Operator("layer", "aten.mm.default", samples * said["flops"], moved)
    return float(analytic_seconds([product], device)[0])


def _column(layers: Mapping[str, Mapping[str, float]], key: str) -> np.ndarray[Any, Any]:
    values: Sequence[float] = [said.get(key, 0.0) for said in layers.values()]
    return np.array(values, dtype=np.float64)[:, None]
