"""Read a measured training plan (``strategy:FILE``): problem and plan, nothing of the measurement.

Tables are taken as they are where the file has them. What it lacks is computed from physics:

- A stage's optimizer step is the profiled one, scaled by the parameters that it updates.
- The embedding's backward pass, which hooks miss, moves the bytes of its forward pass.
- Links with fitted curves: each of the pairs that send at once gets its part of the sum that the
  curve gives. Messages below the smallest measured one take its time at most.
- Between two kinds of devices without a curve: the slower of what each kind has among its own.
- Nominal links: a node's card is shared by all that send through it; inside a node whose own
  bandwidth is not said, that of its card, and at most what the profile's all-reduces show.
- Devices with single forward passes only are extended by `placewright.layers.readers.extension`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.io.boundary import placed
from placewright.io.stored import read_data
from placewright.layers.links import Link
from placewright.layers.plan import LayerPlan, Replica, Schedule, Stage, check_plan
from placewright.layers.problem import LayerProblem, Training
from placewright.layers.readers.datasheets import adam_s_per_parameter, pack_s_per_parameter
from placewright.layers.readers.exam import (
    MOST_WORKERS,
    Row,
    amount,
    count,
    field,
    optional,
    rows,
)
from placewright.layers.readers.extension import Shape, SinglePass
from placewright.numerics.arrays import FloatArray, IntArray

FORMAT = "strategy-exam/1"


def read_strategy(path: str | Path) -> tuple[LayerProblem, LayerPlan]:
    """The problem and the plan of a file.

    Raises
    ------
    InputError
        Names the file, and the field that is missing or wrong.
    """
    where = str(path)
    data, _ = read_data(path)
    if optional(data, "format") != FORMAT:
        raise InputError(
            f"is no measured plan: format is not {FORMAT!r}",
            where=where,
            by=f"got {optional(data, 'format')!r}",
        )
    try:
        problem = _problem(data, where)
        plan = _plan(data, problem, where)
        check_plan(problem, plan)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        text = f"a field has a value that cannot be read: {error!r}"
        raise InputError(text, where=where) from None
    except InputError as error:
        raise placed(error, where) from None
    return problem, plan


@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """The columns of `model.kinds` by layer and degree."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    degrees: tuple[int, ...]
    parameters: FloatArray
    output_bytes: FloatArray
    activation_bytes: FloatArray


def _layers(data: Any, where: str) -> _Layers:
    kinds = tuple(str(kind) for kind in field(data, "model.layers", where))
    repeated = {kind for kind in kinds if kinds.count(kind) > 1}
    names = tuple(f"{kind}.{i}" if kind in repeated else kind for i, kind in enumerate(kinds))
    table = rows(
        field(data, "model.kinds", where),
        f"{where}: model.kinds",
        ("kind", "tensor_parallel", "parameters", "output_bytes_per_sample"),
    )
    degrees = tuple(sorted({int(row["tensor_parallel"]) for row in table}))
    by = {(row["kind"], int(row["tensor_parallel"])): row for row in table}

    def column(key: str, missing: float) -> FloatArray:
        found = np.full((len(kinds), len(degrees)), missing)
        for i, kind in enumerate(kinds):
            for t, degree in enumerate(degrees):
                row = by.get((kind, degree))
                if row is not None:
                    found[i, t] = amount(row.get(key), f"{where}: model.kinds: {key}")
            if (kind, degrees[0]) not in by:
                raise InputError(f"layer kind {kind!r} is missing", where=f"{where}: model.kinds")
        return found

    return _Layers(
        names,
        kinds,
        degrees,
        column("parameters", math.inf),
        column("output_bytes_per_sample", math.inf),
        column("activation_bytes_per_sample", math.nan),
    )


def _problem(data: Any, where: str) -> LayerProblem:
    layers = _layers(data, where)
    devices, nodes = field(data, "cluster.devices", where), field(data, "cluster.nodes", where)
    kinds = tuple(devices)
    for i, node in enumerate(nodes):
        if node.get("device") not in devices:
            raise InputError(
                f"unknown device {node.get('device')!r}", where=f"{where}: cluster.nodes[{i}]"
            )
    per_node = zip(nodes, _devices_of(nodes, where), strict=True)
    worker = [(i, node["device"]) for i, (node, k) in enumerate(per_node) for _ in range(k)]
    plan_sizes = sorted({count(field(data, "plan.micro_batch", where), "plan.micro_batch", 1)})
    shape = _shape(data, layers)
    sizes, forward, backward, single = _times(data, layers, kinds, shape, plan_sizes, where)
    optimizer = _optimizer(data, layers, kinds, where)
    inside = {kind: profile.ring_bandwidth() for kind, profile in single.items()}
    links, link_index = _links(data, nodes, inside, where)
    memory = [amount(devices[kind].get("memory_bytes"), "memory_bytes") for _, kind in worker]
    memory = [math.inf if math.isnan(m) else m for m in memory]
    held = [amount(devices[kind].get("framework_bytes"), "framework_bytes") for _, kind in worker]
    return LayerProblem(
        layer_names=layers.names,
        layer_kinds=layers.kinds,
        degrees=layers.degrees,
        parameters=layers.parameters,
        output_bytes=layers.output_bytes,
        activation_bytes=layers.activation_bytes,
        working_bytes=_working(layers, shape),
        sizes=sizes,
        forward_s=forward,
        backward_s=backward,
        tied=tuple((int(a), int(b)) for a, b in optional(data, "model.tied", [])),
        worker_names=_worker_names(worker),
        worker_kind=[kinds.index(kind) for _, kind in worker],  # type: ignore[arg-type]
        worker_node=[i for i, _ in worker],  # type: ignore[arg-type]
        kind_names=kinds,
        node_names=tuple(f"node{i}" for i in range(len(nodes))),
        memory_bytes=memory,  # type: ignore[arg-type]
        framework_bytes=held,  # type: ignore[arg-type]
        begin_s=[single[kind].exposed_s() if kind in single else 0.0 for kind in kinds],  # type: ignore[arg-type]
        optimizer_s=optimizer,
        pack_s=np.array([pack_s_per_parameter(kind, mixed=_mixed(data)) for kind in kinds]),
        links=links,
        link_index=link_index,
        global_batch=count(field(data, "plan.global_batch", where), "plan.global_batch", 1),
        training=_training(data, shape),
        name=str(optional(data, "name", "strategy")),
    )


def _devices_of(nodes: Any, where: str) -> list[int]:
    """How many devices every node has."""
    at = f"{where}: cluster.nodes"
    found = [
        count(node["count"], f"{at}[{i}].count", 0, MOST_WORKERS) for i, node in enumerate(nodes)
    ]
    count(sum(found), at, 1, MOST_WORKERS)
    return found


def _worker_names(worker: list[tuple[int, str]]) -> tuple[str, ...]:
    seen: dict[int, int] = {}
    names = []
    for node, _ in worker:
        seen[node] = seen.get(node, -1) + 1
        names.append(f"node{node}.{seen[node]}")
    return tuple(names)


def _shape(data: Any, layers: _Layers) -> Shape:
    return Shape(
        int(optional(data, "model.hidden_size", 0)),
        int(optional(data, "model.heads", 0)),
        int(optional(data, "model.sequence_length", 0)),
        int(optional(data, "model.element_bytes", 4)),
    )


def _working(layers: _Layers, shape: Shape) -> FloatArray:
    """Bytes per sample of two gradients of a layer's largest intermediate.

    A backward operation holds the gradient that it gets and the one that it computes. The largest
    intermediate of a block is its attention scores (heads/t * T^2) where the activations kept are
    large enough to hold them, that of other layers their output.
    """
    largest = np.where(np.isfinite(layers.output_bytes), layers.output_bytes, 0.0)
    if shape.heads and shape.sequence:
        degrees = np.array(layers.degrees)
        scores = shape.heads / degrees * shape.sequence**2 * shape.element_bytes
        kept = np.nan_to_num(layers.activation_bytes)
        block = np.array([kind.startswith("block") for kind in layers.kinds])[:, None]
        largest = np.where(block & (kept > scores), np.maximum(largest, scores), largest)
    return np.asarray(2 * largest, dtype=np.float64)


def _times(
    data: Any,
    layers: _Layers,
    kinds: tuple[str, ...],
    shape: Shape,
    plan_sizes: list[int],
    where: str,
) -> tuple[FloatArray, FloatArray, FloatArray, dict[str, SinglePass]]:
    """Sizes, forward and backward tables of shape (kinds, degrees, sizes, layers), single passes.

    The last by kinds of devices of which there is nothing else.
    """
    table = rows(
        field(data, "profile.times", where),
        f"{where}: profile.times",
        ("device", "tensor_parallel", "micro_batch", "kind", "forward_s", "backward_s"),
    )
    sizes = sorted({int(row["micro_batch"]) for row in table})
    dims = (len(kinds), len(layers.degrees), len(sizes), len(layers.kinds))
    forward, backward = np.full(dims, math.nan), np.full(dims, math.nan)
    positions: dict[str, list[int]] = {}
    for i, kind in enumerate(layers.kinds):
        positions.setdefault(kind, []).append(i)
    for row in table:
        degree = int(row["tensor_parallel"])
        if row["device"] not in kinds or degree not in layers.degrees:
            continue
        at = (kinds.index(row["device"]), layers.degrees.index(degree))
        cell = (*at, sizes.index(int(row["micro_batch"])), positions.get(row["kind"], []))
        forward[cell] = amount(row["forward_s"], "forward_s")
        backward[cell] = amount(row["backward_s"], "backward_s")
    # Devices with forward passes only are extended below, to every size that plan and others need.
    single = [k for k in range(len(kinds)) if np.isnan(backward[k]).all()]
    both = [k for k in range(len(kinds)) if k not in single]
    every = sorted({*sizes, 1, *plan_sizes}) if single else sizes
    ahead = np.full((*dims[:2], len(every), dims[3]), math.nan)
    back = ahead.copy()
    places = [every.index(b) for b in sizes]
    if both:
        first, second = _ascending(forward[both]), _ascending(backward[both])
        grid = np.ix_(both, range(dims[1]), places, range(dims[3]))
        ahead[grid], back[grid] = first, _with_embedding(first, second, layers)
    wanted = np.array(every, dtype=np.float64)
    profiles = {}
    for k in single:
        known = ~np.isnan(forward[k]).all(axis=2)  # degrees and sizes that were profiled
        if known.any():
            b = int(np.argmax(known.any(axis=0)))
            had = np.flatnonzero(known[:, b])
            profile = _single(data, forward[k, had, b] / sizes[b], had, layers, kinds[k], shape)
            ahead[k, had], back[k, had] = profile.tables(wanted)
            profiles[kinds[k]] = profile
    return wanted, ahead, back, profiles


def _single(
    data: Any,
    forward_s: FloatArray,
    known: IntArray,
    layers: _Layers,
    kind: str,
    shape: Shape,
) -> SinglePass:
    """Forward passes of one sample at the degrees `known`."""
    nodes = field(data, "cluster.nodes", "")
    own = [node for node in nodes if node["device"] == kind]
    said = [node for node in own if node.get("internal_bytes_per_s")]
    bandwidth = float(np.nanmin([*(_nominal(node, True) for node in said or own), math.inf]))
    degrees = tuple(layers.degrees[t] for t in known)
    held, sent = layers.parameters[:, known], layers.output_bytes[:, known]
    return SinglePass(forward_s, degrees, held, sent, kind, bandwidth, shape)


def _ascending(table: FloatArray) -> FloatArray:
    """A smaller micro-batch takes at most the time of a larger one: the rest is noise."""
    filled = np.where(np.isnan(table), np.inf, table)
    least = np.minimum.accumulate(filled[:, :, ::-1], axis=2)[:, :, ::-1]
    return np.asarray(np.where(np.isnan(table), np.nan, least), dtype=np.float64)


def _with_embedding(forward: FloatArray, backward: FloatArray, layers: _Layers) -> FloatArray:
    """Where a layer with parameters has no backward pass, it is that of its forward bytes."""
    held = layers.parameters[:, 0] > 0
    own = forward[:, :1]  # degree 1: without all-reduces, which the backward pass has none of
    own = np.where(np.isnan(own), forward, own)
    missed = held & (backward < 0.05 * forward)
    return np.asarray(np.where(missed, own, backward), dtype=np.float64)


def _optimizer(data: Any, layers: _Layers, kinds: tuple[str, ...], where: str) -> FloatArray:
    """Shape (kinds,): seconds per parameter, from the profiled model or the memory's bandwidth."""
    table = optional(data, "profile.optimizer")
    if table is None:
        mixed, fused = _mixed(data), "Fused" in str(optional(data, "training.optimizer", ""))
        return np.array([adam_s_per_parameter(kind, mixed=mixed, fused=fused) for kind in kinds])
    entries = rows(table, f"{where}: profile.optimizer", ("device", "optimizer_s"))
    found = np.zeros(len(kinds))
    blocks = [i for i, kind in enumerate(layers.kinds) if kind.startswith("block")]
    # The model that was profiled has two blocks, whatever the planned one has.
    held = [i for i in range(len(layers.kinds)) if i not in blocks] + blocks[:2]
    for k, kind in enumerate(kinds):
        each = []
        for row in entries:
            if row["device"] == kind and int(row["tensor_parallel"]) in layers.degrees:
                t = layers.degrees.index(int(row["tensor_parallel"]))
                each.append(float(row["optimizer_s"]) / float(layers.parameters[held, t].sum()))
        if each:
            found[k] = float(np.median(each))
    return found


def _mixed(data: Any) -> bool:
    return str(optional(data, "training.precision", "fp32")) in ("fp16", "bf16")


NCCL_BUFFER_BYTES = float(4 * 2**20)
"""Default of ``NCCL_BUFFSIZE``: what the sender of a message hands over without waiting."""


def _training(data: Any, shape: Shape) -> Training:
    """What the framework keeps, sends and waits for."""
    mixed = _mixed(data)
    sync = str(optional(data, "training.gradient_sync", ""))
    framework = str(optional(data, "training.framework", ""))
    legacy = "0.3.13" in framework
    mask = 0.0
    if legacy and shape.heads and shape.sequence:
        mask = float(shape.sequence**2 * shape.element_bytes)
    return Training(
        weight_bytes=2.0 if mixed else 4.0,
        gradient_bytes=2.0 if mixed else 4.0,
        optimizer_bytes=12.0 if mixed else 8.0,
        sync_bytes=4.0,
        bucket_bytes=5e8 * 4.0 if "5e8 elements" in sync else math.inf,
        overlap_sync="not overlapped" not in sync,
        blocking_transfers="DeepSpeed" in framework or "blocking" in framework,
        activations_first=legacy,
        eager_bytes=NCCL_BUFFER_BYTES,
        split_activations=legacy,
        extra_bytes=mask,
    )


MESSAGES = tuple(float(2**k) for k in range(16, 31))
"""Sizes at which fitted curves are read: those that were measured."""


def _links(
    data: Any, nodes: list[Any], profiled: dict[str, float], where: str
) -> tuple[tuple[Link, ...], IntArray]:
    """Links and their index; inside nodes at most the bandwidth that a kind's profile shows."""
    curves = optional(data, "cluster.links")
    index = np.full((len(nodes), len(nodes)), -1, dtype=np.int64)
    links: list[Link] = []
    known: dict[str, int] = {}
    for a, first in enumerate(nodes):
        for b, second in enumerate(nodes):
            if curves is None:
                shown = profiled.get(first["device"], math.inf) if a == b else math.inf
                ends = [_nominal(first, a == b), _nominal(second, a == b), shown]
                key = json.dumps([a == b, *ends])
            else:
                ends = [first["device"], second["device"], first["count"], second["count"]]
                key = json.dumps([a == b, *ends])
            if key not in known:
                link = (
                    _nominal_link(ends, a == b)
                    if curves is None
                    else _curve_link(curves, first, second, a == b, where)
                )
                if link is None:
                    known[key] = -1
                else:
                    known[key] = len(links)
                    links.append(link)
            index[a, b] = known[key]
    return tuple(links), index


def _nominal(node: Any, inside: bool) -> float:
    """Bytes per second; inside a node at least what its card has, where only that is known."""
    own = node.get("internal_bytes_per_s") if inside else None
    return float(own or node.get("network_bytes_per_s") or math.nan)


def _nominal_link(limits: list[float], inside: bool) -> Link | None:
    """Between nodes the slower card, shared; inside a node every pair has its own way."""
    known = [x for x in limits if 0 < x < math.inf]
    if not known:
        return None
    bandwidth = min(known)
    return Link.linear(bandwidth, 0.0, math.inf if inside else bandwidth)


def _curve_link(curves: Any, first: Any, second: Any, inside: bool, where: str) -> Link | None:
    """Times by number of pairs; the bandwidth of a curve is the sum over the pairs.

    Where no curve joins two kinds of devices, the slower of what each has among its own.
    """
    one, two = str(first["device"]), str(second["device"])
    if inside:
        table = rows(field(curves, "within_node", where), f"{where}: cluster.links.within_node")
        found = {int(r["count"]) // 2: r for r in table if r["device"] == one}
        return _by_pairs(found)
    table = rows(field(curves, "between_nodes", where), f"{where}: cluster.links.between_nodes")
    direct = _by_pairs(_directed(table, one, two))
    if direct is not None or one == two:
        return direct
    own = [_by_pairs(_directed(table, kind, kind)) for kind in (one, two)]
    known = [link for link in own if link is not None]
    return max(known, key=lambda link: link.seconds(MESSAGES[-1])) if known else None


def _directed(table: list[Row], one: str, two: str) -> dict[int, Row]:
    """Curves between two kinds by number of pairs: the very direction and equal counts win."""
    found: dict[int, Row] = {}
    # Twice over the rows: the very direction overwrites the opposite one.
    for exact in (False, True):
        for row in table:
            ends = (row["from_device"], row["to_device"])
            if set(ends) == {one, two} and (ends == (one, two)) >= exact:
                senders = min(int(row["from_count"]), int(row["to_count"]))
                if int(row["from_count"]) == int(row["to_count"]) or senders not in found:
                    found[senders] = row
    return found


def _by_pairs(found: dict[int, Row]) -> Link | None:
    if not found:
        return None
    pairs = sorted(found)
    times = [[_curve_s(found[n], size, n) for size in MESSAGES] for n in pairs]
    # A fitted parabola may fall where nothing was measured; no larger message takes less.
    ascending = np.maximum.accumulate(np.array(times), axis=1)
    return Link(np.array(pairs), np.array(MESSAGES), ascending)


def _curve_s(row: Any, size: float, pairs: int) -> float:
    """Seconds until each of `pairs` has sent `size` bytes."""
    # The file fits bandwidth over the logarithm of megabytes; between two limits, for fits go wild.
    x = math.log2(size / 1e6)
    total = row["a2_bytes_per_s"] * x * x + row["a1_bytes_per_s"] * x + row["a0_bytes_per_s"]
    top = row.get("largest_measured_bytes_per_s") or math.inf
    bandwidth = min(max(total, 0.02 * top if math.isfinite(top) else 1e6), top)
    return float(size * pairs / bandwidth)


def _plan(data: Any, p: LayerProblem, where: str) -> LayerPlan:
    nodes = field(data, "cluster.nodes", where)
    devices_of = _devices_of(nodes, where)
    first_of = np.cumsum([0, *devices_of])
    stages = []
    micro = count(field(data, "plan.micro_batch", where), "plan.micro_batch", 1)
    for s, entry in enumerate(field(data, "plan.stages", where)):
        at = f"{where}: plan.stages[{s}]"
        replicas = []
        for replica in field(entry, "replicas", at):
            node = count(replica["node"], f"{at}: node")
            local = [count(d, f"{at}: devices") for d in replica["devices"]]
            if node >= len(nodes) or max(local) >= devices_of[node]:
                raise InputError("names a device that does not exist", where=at)
            workers = tuple(int(first_of[node]) + d for d in local)
            replicas.append(Replica(workers, micro))
        degree = max((len(r.workers) for r in replicas), default=1)
        stages.append(
            Stage(
                int(entry["first_layer"]),
                int(entry["last_layer"]),
                tuple(replicas),
                degree,
                zero_stage=int(optional(data, "training.zero_stage", 0)),
                recompute=bool(optional(data, "training.recompute", False)),
            )
        )
    schedule = Schedule(str(optional(data, "plan.schedule", "1f1b")))
    shared = micro * max((len(stage.replicas) for stage in stages), default=1)
    default = count(data["plan"]["global_batch"], "plan.global_batch", 1) // shared
    batches = count(optional(data, "plan.micro_batches", default), "plan.micro_batches", 1)
    return LayerPlan(tuple(stages), batches, schedule)
