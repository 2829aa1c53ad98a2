"""Read Piper's inputs (``piper:FILE``): layers with variants, as a problem of throughput.

Format of msr-fiddle/piper (NeurIPS 2021, arXiv 2106.11731): ``nodes`` with ``TMPCs`` (costs by
tensor degree and variant), ``edges``, ``maxDevices``, ``maxMemoryPerDevice``, ``bandwidth``,
``mbsInBatch``. The order of the layers keeps cuts small: see `topological`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError, PlacewrightError
from placewright.io.arguments import Unlimited, checked
from placewright.io.boundary import placed
from placewright.io.stored import read_data, stem
from placewright.layers.problem import LayerProblem, Objective, Variants
from placewright.layers.workers import Link

MOST_WORKERS = 65_536
"""Workers have names, memories and places in a plan: of more the problem itself takes gigabytes."""


@checked
def read_piper(
    path: str | Path, *, devices: int | None = None, memory_bytes: Unlimited | None = None
) -> LayerProblem:
    """The problem of a file, with other devices or memory where they are given.

    Raises `InputError`: names the file, and the field that is missing or wrong.
    """
    where = str(path)
    data, _ = read_data(path)
    try:
        return _problem(data, devices, memory_bytes, where, stem(path))
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        text = f"a field has a value that cannot be read: {error!r}"
        raise InputError(text, where=where) from None
    except PlacewrightError as error:
        raise placed(error, where) from None


def _problem(
    data: Any, devices: int | None, memory_bytes: float | None, where: str, name: str
) -> LayerProblem:
    listed = field(data, "nodes", where)
    nodes = {int(node["id"]): node for node in listed}
    if len(nodes) < len(listed):
        twice = Counter(int(node["id"]) for node in listed).most_common(1)[0][0]
        raise InputError(f"node {twice} is there twice", where=where)
    edges = [
        (int(e["sourceId"]), int(e["destId"]), _number(e, "communicationCost", where))
        for e in field(data, "edges", where)
    ]
    order = topological(list(nodes), [(a, b) for a, b, _ in edges], where)
    at = {node: i for i, node in enumerate(order)}
    degrees = tuple(sorted({int(t) for node in nodes.values() for t in node["TMPCs"]} | {1}))
    names = tuple(
        dict.fromkeys(
            str(v["id"]) for node in nodes.values() for vs in node["TMPCs"].values() for v in vs
        )
    )
    shape = (len(order), len(degrees), len(names))
    columns = {
        key: np.full(shape, math.inf)
        for key in ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
    }
    across = (len(edges), len(degrees), len(names))
    sync_in, sync_out = np.zeros(across), np.zeros(across)
    into = {(a, b): e for e, (a, b, _) in enumerate(edges)}
    for node_id, node in nodes.items():
        for degree, variants in node["TMPCs"].items():
            t = degrees.index(int(degree))
            for v in variants:
                cell = (at[node_id], t, names.index(str(v["id"])))
                for key, table in columns.items():
                    table[cell] = _number(v, key, f"{where}: node {node_id}")
                for other in (sync := v["syncTimeFw"]):
                    at_edge = into[int(other), node_id], t, cell[2]
                    sync_in[at_edge] = _number(sync, other, f"{where}: node {node_id}: syncTimeFw")
                for other in (sync := v["syncTimeBw"]):
                    at_edge = into[node_id, int(other)], t, cell[2]
                    sync_out[at_edge] = _number(sync, other, f"{where}: node {node_id}: syncTimeBw")
    given = devices if devices is not None else field(data, "maxDevices", where)
    k = count(given, "devices", 1, MOST_WORKERS)
    room = _number(data, "maxMemoryPerDevice", where) if memory_bytes is None else memory_bytes
    parameters = np.where(np.isfinite(columns["parameterSize"]), columns["parameterSize"], np.inf)
    parameters = parameters.min(axis=2) / 4.0
    if not np.isfinite(parameters[:, 0]).all():
        raise InputError("a node has no costs at tensor degree 1", where=where)
    tables = np.zeros((1, len(degrees), 1, len(order)))
    bandwidth = _number(data, "bandwidth", where)
    outputs = np.zeros((len(order), len(degrees)))
    for a, _, sent in edges:
        outputs[at[a]] = np.maximum(outputs[at[a]], sent)
    return LayerProblem(
        layer_names=tuple(f"{node}.{nodes[node].get('name', 'layer')}" for node in order),
        parameters=parameters,
        output_bytes=outputs,
        forward_s=tables,
        backward_s=tables,
        degrees=degrees,
        edge_source=np.array([at[a] for a, _, _ in edges]),
        edge_target=np.array([at[b] for _, b, _ in edges]),
        edge_bytes=np.array([sent for _, _, sent in edges]),
        worker_names=tuple(f"device{w}" for w in range(k)),
        memory_bytes=np.full(k, room),
        links=(Link.linear(bandwidth),),
        link_index=np.zeros((1, 1), dtype=np.int64),
        global_batch=count(field(data, "mbsInBatch", where), "mbsInBatch", 1),
        variants=Variants(
            names,
            columns["timePerSample"],
            columns["parameterSize"],
            columns["memoryUsageA"],
            columns["memoryUsageB"],
            sync_in,
            sync_out,
            bandwidth,
            count(field(data, "mbsInBatch", where), "mbsInBatch", 1),
        ),
        objective=Objective.THROUGHPUT,
        name=name,
    )


def _number(entry: Any, key: str, where: str) -> float:
    """A field that is a number of at least 0."""
    return amount(field(entry, key, where), f"{where}: {key}", needed=True)


def topological(ids: list[int], edges: list[tuple[int, int]], where: str) -> list[int]:
    """A topological order in which layers come as late as possible, ties by the file's order.

    Breadth first from the last layers backwards: branches that join are then next to each other,
    and intervals of the order cut few edges.
    """
    sources: dict[int, list[int]] = {i: [] for i in ids}
    waiting = dict.fromkeys(ids, 0)
    for a, b in edges:
        if a not in sources or b not in sources:
            raise InputError(f"an edge from {a} to {b} names a node that is missing", where=where)
        sources[b].append(a)
        waiting[a] += 1
    order = [i for i in ids if waiting[i] == 0]
    for node in order:  # grows while it is read
        for a in sources[node]:
            waiting[a] -= 1
            if waiting[a] == 0:
                order.append(a)
    if len(order) < len(ids):
        raise InputError("the edges have a cycle", where=where)
    return order[::-1]


def field(data: Any, path: str, where: str) -> Any:
    """The value at a dotted path.

    Raises `InputError`: there is none; names the first key that is missing.
    """
    for key in path.split("."):
        if not isinstance(data, Mapping) or key not in data:
            raise InputError(f"{key!r} is missing", where=f"{where}: {path}")
        data = data[key]
    return data


def count(value: Any, where: str, least: int = 0, most: int = 1_000_000) -> int:
    """A whole number of at least `least` and at most `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value % 1 != 0:  # so are infinity and NaN
        raise InputError("must be a whole number", where=where, by=f"got {value!r}"[:40])
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise InputError(f"must be {limit}", where=where, by=f"got {value!r}"[:40])
    return int(value)


def amount(value: Any, where: str, *, needed: bool = False) -> float:
    """A number of at least 0; NaN for null, which is refused where a number is `needed`."""
    if value is None and not needed:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InputError("must be a number >= 0", where=where, by=f"got {value!r}")
    return float(value)
