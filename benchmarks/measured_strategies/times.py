"""Layers of a measured plan and their profiled times, extended where the file lacks some."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.layers.files import amount, field
from placewright.numerics.arrays import FloatArray, IntArray

from .datasheets import adam_s_per_parameter
from .extension import Shape, SinglePass
from .fields import optional, rows
from .links import nominal


@dataclass(frozen=True, slots=True, eq=False)
class ExamLayers:
    """The columns of `model.kinds` by layer and degree."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    degrees: tuple[int, ...]
    parameters: FloatArray
    output_bytes: FloatArray
    activation_bytes: FloatArray


def exam_layers(data: Any, where: str) -> ExamLayers:
    """The chain of layers; raises `InputError` where a kind is not in the table."""
    kinds = tuple(str(kind) for kind in field(data, "model.layers", where))
    if not kinds:
        raise InputError("must name at least one layer", where=f"{where}: model.layers")
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

    return ExamLayers(
        names,
        kinds,
        degrees,
        column("parameters", math.inf),
        column("output_bytes_per_sample", math.inf),
        column("activation_bytes_per_sample", math.nan),
    )


def times_of(
    data: Any,
    layers: ExamLayers,
    kinds: tuple[str, ...],
    shape: Shape,
    plan_size: int,
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
    every = sorted({*sizes, 1, plan_size}) if single else sizes
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
    layers: ExamLayers,
    kind: str,
    shape: Shape,
) -> SinglePass:
    """Forward passes of one sample at the degrees `known`."""
    nodes = field(data, "cluster.nodes", "")
    own = [node for node in nodes if node["device"] == kind]
    stated = [node for node in own if node.get("internal_bytes_per_s")]
    bandwidth = float(np.nanmin([*(nominal(node, True) for node in stated or own), math.inf]))
    degrees = tuple(layers.degrees[t] for t in known)
    held, sent = layers.parameters[:, known], layers.output_bytes[:, known]
    return SinglePass(forward_s, degrees, held, sent, kind, bandwidth, shape)


def _ascending(table: FloatArray) -> FloatArray:
    """A smaller micro-batch takes at most the time of a larger one: the rest is noise."""
    filled = np.where(np.isnan(table), np.inf, table)
    least = np.minimum.accumulate(filled[:, :, ::-1], axis=2)[:, :, ::-1]
    return np.asarray(np.where(np.isnan(table), np.nan, least), dtype=np.float64)


def _with_embedding(forward: FloatArray, backward: FloatArray, layers: ExamLayers) -> FloatArray:
    """Where a layer with parameters has no backward pass, it is that of its forward bytes."""
    held = layers.parameters[:, 0] > 0
    own = forward[:, :1]  # degree 1: without all-reduces, which the backward pass has none of
    own = np.where(np.isnan(own), forward, own)
    missed = held & (backward < 0.05 * forward)
    return np.asarray(np.where(missed, own, backward), dtype=np.float64)


def optimizer_of(data: Any, layers: ExamLayers, kinds: tuple[str, ...], where: str) -> FloatArray:
    """Shape (kinds,): seconds per parameter, from the profiled model or the memory's bandwidth."""
    table = optional(data, "profile.optimizer")
    if table is None:
        mixed = mixed_precision(data)
        fused = "Fused" in str(optional(data, "training.optimizer", ""))
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
                updated = max(1.0, float(layers.parameters[held, t].sum()))
                each.append(amount(row["optimizer_s"], "optimizer_s") / updated)
        if each:
            found[k] = float(np.median(each))
    return found


def mixed_precision(data: Any) -> bool:
    """Whether weights and activations have 16 bits, beside weights of 32 in the optimizer."""
    return str(optional(data, "training.precision", "fp32")) in ("fp16", "bf16")
