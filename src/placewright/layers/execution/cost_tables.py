"""Tables of costs, measured or computed, as a layer problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from placewright.errors import UnsupportedError
from placewright.layers.execution.refusals import refusals, tensor_refusals
from placewright.layers.execution.stage_orders import TracedModel, tied_layers
from placewright.layers.execution.stage_step import BUCKET_MB
from placewright.layers.problem import LayerProblem, Training
from placewright.layers.profile.chain import Layer, layer_flops
from placewright.layers.workers import Link, Workers
from placewright.numerics.arrays import FloatArray, IntArray

HEAP_BLOCK_BYTES = float(32 << 20)
"""glibc's largest threshold from which on blocks are mapped one by one (``mallopt(3)``)."""


@dataclass(slots=True, eq=False)
class CostTables:
    """Times by kind of worker, degree, size and layer, as a problem has them.

    Attributes
    ----------
    optimizer_s
        By kind, of a step over all parameters.
    passes
        Bytes that passes over all layers held, NaN where unknown, and of how many samples.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    saved: FloatArray
    tensor_bytes: FloatArray
    elements: FloatArray
    optimizer_s: FloatArray
    alone: float
    passes: tuple[float, int]


@dataclass(slots=True, eq=False)
class MessageCosts:
    """Messages between nodes and inside them.

    Attributes
    ----------
    busy_s
        Shape (W, 3): what a byte that a worker sends, one that it receives, and a message either
        way take of its processor; 0 for the second worker of a node and so on.
    """

    links: tuple[Link, ...]
    index: IntArray
    busy_s: FloatArray


def problem_of_tables(
    model: TracedModel,
    workers: Workers,
    tables: CostTables,
    network: MessageCosts,
    framework_bytes: FloatArray,
    *,
    sizes: Sequence[int],
    moments: int,
    exact: bool,
) -> LayerProblem:
    """The layer problem of these tables.

    `exact`: layers with dropout or batch norm have to see the whole batch.
    `moments`: states of the optimizer that are as large as the parameters.
    `framework_bytes`: shape (W,): what a process holds before any tensor.
    """
    devices, degrees, busy = workers.devices, workers.degrees, network.busy_s
    messages = np.array([busy[workers.kind == k].mean(axis=0) for k in range(len(workers.kinds))])
    reasons = tensor_refusals(model, degrees)
    parameters = tables.elements
    for layer, degree in reasons:
        parameters[layer, degrees.index(degree)] = math.inf
    held = float(np.where(np.isfinite(parameters[:, 0]), parameters[:, 0], 0).sum())
    outputs = _output_bytes(model)
    # A layer that is split at a degree holds the part of its weights that its elements say.
    whole = np.isfinite(parameters) & (parameters > 0)
    divided = np.where(whole, parameters[:, :1] / np.where(whole, parameters, 1.0), 1.0)
    update_bytes = _update_bytes(model)[:, None] / divided if moments > 1 else 0.0 * divided
    working = _working_bytes(model)
    heap = _heap_factor(tables, working)
    return LayerProblem(
        name=f"{model.source.name} on {workers.cluster.name}",
        layer_names=tuple(layer.name for layer in model.layers),
        layer_kinds=tuple(layer.kind for layer in model.layers),
        parameters=parameters,
        output_bytes=np.repeat(outputs[:, None], len(degrees), axis=1),
        forward_s=tables.forward_s,
        backward_s=tables.backward_s,
        activation_bytes=heap * tables.saved,
        working_bytes=np.repeat(heap * working[:, None], len(degrees), axis=1),
        update_bytes=update_bytes,
        tensor_bytes=tables.tensor_bytes,
        flops=np.array([_flops(model, layer) for layer in model.layers]),
        sizes=np.array(sizes, dtype=np.float64),
        degrees=degrees,
        worker_names=workers.cluster.device_names,
        kind_names=workers.kinds,
        worker_kind=workers.kind,
        node_names=workers.nodes,
        worker_node=workers.node,
        memory_bytes=np.array([d.memory_bytes for d in devices]),
        framework_bytes=framework_bytes,
        optimizer_s=tables.optimizer_s / max(held, 1.0),
        alone=tables.alone,
        send_s=messages[:, 0],
        receive_s=messages[:, 1],
        message_s=messages[:, 2],
        links=network.links,
        link_index=network.index,
        tied=tuple(
            (a, b) for users in tied_layers(model.layers).values() for a, b in _pairs(users)
        ),
        refusals=refusals(model, degrees, reasons, exact=exact),
        training=Training(
            bucket_bytes=BUCKET_MB << 20,
            optimizer_bytes=4.0 * moments,
            gradients_apart=True,
            keeps_received=True,
            heap_block_bytes=HEAP_BLOCK_BYTES,
            shards_wait=workers.on_cpus,
            split_activations=False,  # a chain per column of workers, each with whole activations
            split_gradients=False,
        ),
        zero_stages=(0,),
        recompute=False,
        global_batch=model.batch,
    )


def measured_sizes(batch: int, *, whole: bool = False) -> tuple[int, ...]:
    """Micro-batch sizes that are measured; others are interpolated.

    A single sample is one of them: dispatching calls takes a part of it that samples do not share.
    Not where a layer looks at a batch as a `whole`: batch norm may refuse a single sample.
    """
    parts = {max(1, batch // 8), max(1, batch // 3), batch}
    return tuple(sorted(parts if whole else parts | {1}))


def traced_alike(model: TracedModel, sizes: Sequence[int]) -> tuple[int, ...]:
    """Those on which the model makes the calls that it makes on its batch.

    Code may leave out an `expand` on a single sample; plans with such parts are refused later.
    """
    found = []
    for size in sizes:
        with suppress(UnsupportedError):
            model.programs(size)
            found.append(size)
    return tuple(found)


def _heap_factor(tables: CostTables, working: FloatArray) -> float:
    """How many times as much passes hold as the sum of what autograd keeps and a layer works on.

    What the allocator loses between blocks and workspaces of kernels are not seen by counting
    tensors: one worker has run all layers and its resident memory was read.
    """
    held, samples = tables.passes
    kept = float(np.nansum(tables.saved[:, 0])) * samples
    gradient = 4.0 * np.nan_to_num(tables.elements[:, 0])
    counted = kept + float((working * samples + gradient).max())
    return max(1.0, held / counted) if math.isfinite(held) and counted > 0 else 1.0


def _pairs(users: Sequence[int]) -> list[tuple[int, int]]:
    return [(users[0], other) for other in users[1:]]


def _output_bytes(model: TracedModel) -> FloatArray:
    """Bytes per sample that pass the cut behind every layer."""
    found = []
    for layer in model.layers[:-1]:
        specs = [model.step.specs[v] for v in layer.outputs]
        size = sum(math.prod(s.shape) * _item_bytes(s.dtype) for s in specs)
        found.append(size / model.batch)
    return np.array([*found, 0.0])


def _working_bytes(model: TracedModel) -> FloatArray:
    """Shape (n,): per sample, two gradients of a layer's largest value.

    A backward operation holds the gradient that it was given and the one that it computes.
    """
    step, found = model.step, []
    for layer in model.layers:
        names = {n for i in step.instructions[layer.first : layer.end] for n in i.results if n}
        sizes = [_value_bytes(model, name) for name in sorted(names | set(layer.inputs))]
        found.append(2 * max(sizes, default=0.0) / model.batch)
    return np.array(found)


def _update_bytes(model: TracedModel) -> FloatArray:
    """Shape (n,): what Adam holds beside its states while it updates a layer's largest parameter.

    ``exp_avg_sq.sqrt() / correction`` has two results of the parameter's size at once
    (`torch.optim.adam`, one parameter after another, as on CPUs).
    """
    step, found = model.step, []
    for layer in model.layers:
        held = [v for v, name in step.parameters.items() if name in layer.parameters]
        found.append(2 * max((_value_bytes(model, v) for v in held), default=0.0))
    return np.array(found)


def _value_bytes(model: TracedModel, name: str) -> float:
    spec = model.step.specs.get(name)
    return 0.0 if spec is None else float(math.prod(spec.shape) * _item_bytes(spec.dtype))


def _flops(model: TracedModel, layer: Layer) -> float:
    """Of one sample."""
    return layer_flops(model.step, layer) / model.batch


def _item_bytes(dtype: str) -> int:
    import torch

    return int(torch.empty(0, dtype=getattr(torch, dtype)).element_size())
