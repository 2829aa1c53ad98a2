"""Read a measured training plan: problem and plan, nothing of the measurement.

Tables are taken as they are where the file has them. What it lacks is computed from physics:

- A stage's optimizer step is the profiled one, scaled by the parameters that it updates.
- The embedding's backward pass, which hooks miss, moves the bytes of its forward pass.
- Links with fitted curves: each of the pairs that send at once gets its part of the sum that the
  curve gives. Messages below the smallest measured one take its time at most.
- Between two kinds of devices without a curve: the slower of what each kind has among its own.
- Nominal links: a node's card is shared by all that send through it; inside a node whose own
  bandwidth is not said, that of its card, and at most what the profile's all-reduces show.
- Devices with single forward passes only are extended by `measured_strategies.extension`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import checked
from placewright.io.boundary import placed
from placewright.io.stored import read_data
from placewright.layers.files import MOST_WORKERS, amount, count, field
from placewright.layers.plan import LayerPlan, Replica, Schedule, Stage, check_plan
from placewright.layers.problem import LayerProblem, Training
from placewright.numerics.arrays import FloatArray

from .datasheets import pack_s_per_parameter
from .extension import Shape
from .fields import optional, warn_unknown
from .links import links_of
from .times import ExamLayers, exam_layers, mixed_precision, optimizer_of, times_of

FORMAT = "strategy-exam/1"

FIELDS = {
    "": "format name set source model profile cluster training plan measured suspect reference",
    "model": "name layers kinds tied hidden_size heads sequence_length vocabulary_size"
    " element_bytes",
    "profile": "times optimizer times_before_adjustment",
    "cluster": "devices nodes links",
    "cluster.devices.*": "memory_bytes framework_bytes",
    "cluster.nodes.*": "device count network_bytes_per_s internal_bytes_per_s",
    "cluster.links": "formula measured_message_bytes between_nodes within_node",
    "training": "framework precision optimizer zero_stage recompute gradient_sync",
    "plan": "global_batch micro_batch micro_batches schedule stages",
    "plan.stages.*": "first_layer last_layer replicas",
    "plan.stages.*.replicas.*": "node devices tensor_parallel",
}
"""Of the format, by what holds them; those of tables are their columns."""


@checked
def read_strategy(path: str | Path) -> tuple[LayerProblem, LayerPlan]:
    """The problem and the plan of a file.

    Raises `InputError`: names the file, and the field that is missing or wrong.
    """
    where = str(path)
    data, _ = read_data(path)
    if optional(data, "format") != FORMAT:
        raise InputError(
            f"is no measured plan: format is not {FORMAT!r}",
            where=where,
            by=f"got {optional(data, 'format')!r}",
        )
    warn_unknown(data, FIELDS, where)
    try:
        problem = _problem(data, where)
        plan = _plan(data, where)
        check_plan(problem, plan)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        text = f"a field has a value that cannot be read: {error!r}"
        raise InputError(text, where=where) from None
    except InputError as error:
        raise placed(error, where) from None
    return problem, plan


def _problem(data: Any, where: str) -> LayerProblem:
    layers = exam_layers(data, where)
    devices, nodes = field(data, "cluster.devices", where), field(data, "cluster.nodes", where)
    kinds, mixed = tuple(devices), mixed_precision(data)
    for i, node in enumerate(nodes):
        if node.get("device") not in devices:
            raise InputError(
                f"unknown device {node.get('device')!r}", where=f"{where}: cluster.nodes[{i}]"
            )
    per_node = zip(nodes, _devices_of(nodes, where), strict=True)
    worker = [(i, node["device"]) for i, (node, k) in enumerate(per_node) for _ in range(k)]
    plan_size = count(field(data, "plan.micro_batch", where), "plan.micro_batch", 1)
    shape = _shape(data)
    sizes, forward, backward, single = times_of(data, layers, kinds, shape, plan_size, where)
    optimizer = optimizer_of(data, layers, kinds, where)
    inside = {kind: profile.ring_bandwidth() for kind, profile in single.items()}
    links, link_index = links_of(data, nodes, inside, where)
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
        pack_s=np.array([pack_s_per_parameter(kind, mixed=mixed) for kind in kinds]),
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


def _shape(data: Any) -> Shape:
    return Shape(
        int(optional(data, "model.hidden_size", 0)),
        int(optional(data, "model.heads", 0)),
        int(optional(data, "model.sequence_length", 0)),
        int(optional(data, "model.element_bytes", 4)),
    )


def _working(layers: ExamLayers, shape: Shape) -> FloatArray:
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


NCCL_BUFFER_BYTES = float(4 * 2**20)
"""Default of ``NCCL_BUFFSIZE``: what the sender of a message hands over without waiting."""


def _training(data: Any, shape: Shape) -> Training:
    """What the framework keeps, sends and waits for."""
    mixed = mixed_precision(data)
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
        sync_bytes=2.0 if mixed and sync and "fp32" not in sync else 4.0,
        bucket_bytes=5e8 * 4.0 if "5e8 elements" in sync else math.inf,
        overlap_sync="not overlapped" not in sync,
        blocking_transfers="DeepSpeed" in framework or "blocking" in framework,
        activations_first=legacy,
        eager_bytes=NCCL_BUFFER_BYTES,
        # DeepSpeed partitions both from 0.4 on (PipelineEngine.is_grad_partitioned).
        split_gradients=not legacy,
        keeps_parts="DeepSpeed" in framework,
        extra_bytes=mask,
    )


def _plan(data: Any, where: str) -> LayerPlan:
    nodes = field(data, "cluster.nodes", where)
    devices_of = _devices_of(nodes, where)
    micro = count(field(data, "plan.micro_batch", where), "plan.micro_batch", 1)
    zero = count(optional(data, "training.zero_stage", 0), "training.zero_stage", 0, 3)
    stages = []
    for s, entry in enumerate(field(data, "plan.stages", where)):
        at = f"{where}: plan.stages[{s}]"
        workers = [_workers(r, devices_of, at) for r in field(entry, "replicas", at)]
        stages.append(
            Stage(
                count(field(entry, "first_layer", at), f"{at}: first_layer"),
                count(field(entry, "last_layer", at), f"{at}: last_layer"),
                tuple(Replica(own, micro) for own in workers),
                max(map(len, workers), default=1),
                zero_stage=zero,
                recompute=bool(optional(data, "training.recompute", False)),
            )
        )
    shared = micro * max((len(stage.replicas) for stage in stages), default=1)
    default = count(data["plan"]["global_batch"], "plan.global_batch", 1) // shared
    batches = count(optional(data, "plan.micro_batches", default), "plan.micro_batches", 1)
    return LayerPlan(tuple(stages), batches, _schedule(data, where))


def _workers(replica: Any, devices_of: list[int], at: str) -> tuple[int, ...]:
    """The workers of a replica, from its node and the devices there."""
    node = count(field(replica, "node", at), f"{at}: node")
    local = [count(d, f"{at}: devices") for d in field(replica, "devices", at)]
    if not local or node >= len(devices_of) or max(local) >= devices_of[node]:
        has = f"node {node} has {devices_of[node]}" if node < len(devices_of) else f"node {node}"
        raise InputError("names a device that does not exist", where=at, by=f"{local}; {has}")
    degree = optional(replica, "tensor_parallel", len(local))
    if degree != len(local):
        by = f"{degree}, {len(local)} devices"
        raise InputError("tensor_parallel must be the number of devices", where=at, by=by)
    return tuple(sum(devices_of[:node]) + d for d in local)


def _schedule(data: Any, where: str) -> Schedule:
    name = str(optional(data, "plan.schedule", Schedule.ONE_F_ONE_B)).lower()
    if name not in set(Schedule):
        known = ", ".join(Schedule)
        raise InputError(
            "no such schedule", where=f"{where}: plan.schedule", by=f"{name!r}, not {known}"
        )
    return Schedule(name)
