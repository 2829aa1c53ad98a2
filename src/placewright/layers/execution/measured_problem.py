"""A layer problem from measurements on the workers themselves: layers, messages, optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from safetensors.torch import save

from placewright.cluster.cluster import Device
from placewright.layers.costs.rings import ring_times
from placewright.layers.execution.orders import SizedLayers
from placewright.layers.execution.refusals import inexact_layers, refusals, tensor_refusals
from placewright.layers.execution.session import LayerSession
from placewright.layers.execution.stage_orders import TracedModel, tied_layers
from placewright.layers.execution.stage_step import BUCKET_MB
from placewright.layers.execution.timing import LayerTimes
from placewright.layers.links import Link
from placewright.layers.problem import LayerProblem, Training
from placewright.layers.profile.chain import Layer
from placewright.layers.profile.formulas import layer_flops, unknown_calls
from placewright.layers.profile.tracing import with_batch
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.runtime import limits

MESSAGE_BYTES = (1 << 10, 1 << 16, 1 << 20)

TENSORS = 8
"""Parameters of a layer whose sharding is timed beside that of layers with one."""

INSIDE = Link.linear(4e9, 5e-5)
"""Inside a node with a single worker."""


@dataclass(slots=True, eq=False)
class MeasuredTables:
    """Times by kind of worker, degree, size and layer, as a problem has them."""

    forward_s: FloatArray
    backward_s: FloatArray
    saved: FloatArray
    tensor_bytes: FloatArray
    elements: FloatArray
    optimizer_s: FloatArray
    alone: float
    passes: tuple[float, int]
    """Bytes that passes over all layers held, and of how many samples."""


HEAP_BLOCK_BYTES = float(32 << 20)
"""glibc's largest threshold from which on blocks are mapped one by one (``mallopt(3)``)."""


def measured_problem(
    session: LayerSession, *, exact: bool = False, sizes: Sequence[int] = ()
) -> LayerProblem:
    """Measure everything that plans for this model on these workers cost.

    All workers measure at once, as they will train at once.

    `exact`: layers with dropout or batch norm have to see the whole batch.
    `sizes`: of micro-batches to measure, ascending; a few up to the batch by default.
    """
    model, cluster = session.model, session.cluster
    devices = cluster.devices
    degrees = tuple(d for d in range(1, len(devices) + 1) if d == 1 or len(devices) % d == 0)
    sizes = tuple(sizes) or measured_sizes(model.batch, whole=bool(inexact_layers(model)))
    kinds = list(dict.fromkeys(map(_kind, devices)))
    tables = _tables(session, sizes, degrees, kinds)
    nodes = list(dict.fromkeys(d.node for d in devices))
    links, link_index, busy = _links(session, nodes)
    worker_kind = np.array([kinds.index(_kind(d)) for d in devices])
    messages = np.array([busy[worker_kind == k].mean(axis=0) for k in range(len(kinds))])
    reasons = tensor_refusals(model, degrees)
    parameters = tables.elements
    for layer, degree in reasons:
        parameters[layer, degrees.index(degree)] = math.inf
    adam = session.optimizer != "sgd"
    held = float(np.where(np.isfinite(parameters[:, 0]), parameters[:, 0], 0).sum())
    outputs = _output_bytes(model)
    # A layer that is split at a degree holds the part of its weights that its elements say.
    whole = np.isfinite(parameters) & (parameters > 0)
    divided = np.where(whole, parameters[:, :1] / np.where(whole, parameters, 1.0), 1.0)
    working = _working_bytes(model)
    heap = _heap_factor(tables, working)
    problem = LayerProblem(
        name=f"{model.source.name} on {cluster.name}",
        layer_names=tuple(layer.name for layer in model.layers),
        layer_kinds=tuple(layer.kind for layer in model.layers),
        parameters=parameters,
        output_bytes=np.repeat(outputs[:, None], len(degrees), axis=1),
        forward_s=tables.forward_s,
        backward_s=tables.backward_s,
        activation_bytes=heap * tables.saved,
        working_bytes=np.repeat(heap * working[:, None], len(degrees), axis=1),
        update_bytes=_update_bytes(model)[:, None] / divided if adam else np.zeros_like(divided),
        tensor_bytes=tables.tensor_bytes,
        flops=np.array([_flops(model, layer) for layer in model.layers]),
        sizes=np.array(sizes, dtype=np.float64),
        degrees=degrees,
        worker_names=cluster.device_names,
        kind_names=tuple(kinds),
        worker_kind=worker_kind,
        node_names=tuple(nodes),
        worker_node=np.array([nodes.index(d.node) for d in devices]),
        memory_bytes=np.array([d.memory_bytes for d in devices]),
        framework_bytes=np.array(session.held_bytes(), dtype=np.float64),
        optimizer_s=tables.optimizer_s / max(held, 1.0),
        alone=tables.alone,
        send_s=messages[:, 0],
        receive_s=messages[:, 1],
        message_s=messages[:, 2],
        links=links,
        link_index=link_index,
        tied=tuple(
            (a, b) for users in tied_layers(model.layers).values() for a, b in _pairs(users)
        ),
        refusals=refusals(model, degrees, exact=exact),
        training=Training(
            bucket_bytes=BUCKET_MB << 20,
            optimizer_bytes=8.0 if adam else 0.0,
            gradients_apart=True,
            keeps_received=True,
            heap_block_bytes=HEAP_BLOCK_BYTES,
            shards_wait=_on_cpus(session),
        ),
        zero_stages=(0,),
        recompute=False,
        global_batch=model.batch,
    )
    return with_shards(session, problem)


def _on_cpus(session: LayerSession) -> bool:
    return all(device.kind != "gpu" for device in session.cluster.devices)


def with_shards(session: LayerSession, problem: LayerProblem) -> LayerProblem:
    """The problem with what gathering weights and scattering gradients takes beside messages."""
    if problem.w < 2 or not problem.training.shards_wait:
        return problem
    several = (MESSAGE_BYTES[1] // 4, TENSORS)
    layers = (*((size // 4, 1) for size in MESSAGE_BYTES), several)
    answers = session.group.order_all(
        "time_shards", layers, limit_s=limits.patience(limits.FIRST_STEPS_S)
    )
    slowest = np.array(answers).max(axis=0)  # of all workers: they wait for each other
    counts = np.array([len(layer.parameters) for layer in session.model.layers])
    sent = problem.parameters[:, 0] * problem.training.weight_bytes
    messages = ring_times(problem, range(problem.w), sent, 1)
    found = []
    for taken in slowest.T:
        # The same bytes in many parameters take this longer for each further one.
        each_s = max(0.0, float(taken[3] - taken[1]) / (TENSORS - 1))
        ascending = np.maximum.accumulate(taken[:3])
        link = Link(np.array([1]), np.array(MESSAGE_BYTES, dtype=float), ascending[None])
        whole = link.times(sent) + each_s * np.maximum(counts - 1, 0)
        found.append(np.where(sent > 0, np.maximum(whole - messages, 0.0), 0.0))
    return problem.replace(gather_s=found[0], scatter_s=found[1])


def _heap_factor(tables: MeasuredTables, working: FloatArray) -> float:
    """How many times as much passes hold as the sum of what autograd keeps and a layer works on.

    What the allocator loses between blocks and workspaces of kernels are not seen by counting
    tensors: one worker has run all layers and its resident memory was read.
    """
    held, samples = tables.passes
    kept = float(np.nansum(tables.saved[:, 0])) * samples
    gradient = 4.0 * np.nan_to_num(tables.elements[:, 0])
    counted = kept + float((working * samples + gradient).max())
    return max(1.0, held / counted) if math.isfinite(held) and counted > 0 else 1.0


def measured_sizes(batch: int, *, whole: bool = False) -> tuple[int, ...]:
    """Micro-batch sizes that are measured; others are interpolated.

    A single sample is one of them: dispatching calls takes a part of it that samples do not share.
    Not where a layer looks at a batch as a `whole`: batch norm may refuse a single sample.
    """
    parts = {max(1, batch // 8), max(1, batch // 3), batch}
    return tuple(sorted(parts if whole else parts | {1}))


def _pairs(users: Sequence[int]) -> list[tuple[int, int]]:
    return [(users[0], other) for other in users[1:]]


def _kind(device: Device) -> str:
    return f"{device.kind} x{device.cores} at {device.speed:g}"


def _tables(
    session: LayerSession, sizes: Sequence[int], degrees: Sequence[int], kinds: list[str]
) -> MeasuredTables:
    devices, n = session.cluster.devices, len(session.model.layers)
    shape = (len(kinds), len(degrees), len(sizes), n)
    forward, backward, optimizer = np.zeros(shape), np.zeros(shape), np.zeros(len(kinds))
    kind = [kinds.index(_kind(d)) for d in devices]
    answers, alone = time_layers(session, sizes, degrees)
    # Means over the workers of a kind.
    for k, by_size in zip(kind, answers, strict=True):
        for b, by_degree in enumerate(by_size):
            for t, times in enumerate(by_degree):
                forward[k, t, b] += times.forward_s / kind.count(k)
                backward[k, t, b] += times.backward_s / kind.count(k)
            optimizer[k] += by_degree[0].optimizer_s / kind.count(k) / len(sizes)
    largest, middle = answers[0][-1], (len(sizes) - 1) // 2
    return MeasuredTables(
        forward,
        backward,
        np.array([times.saved_bytes / sizes[-1] for times in largest]).T,
        largest[-1].tensor_bytes / sizes[-1],
        np.array([times.elements for times in largest]).T,
        optimizer,
        alone,
        (max(by_size[middle][0].passes_bytes for by_size in answers), sizes[middle]),
    )


def time_layers(
    session: LayerSession, sizes: Sequence[int], degrees: Sequence[int]
) -> tuple[list[list[list[LayerTimes]]], float]:
    """Costs of the layers by worker, number of samples and tensor degree; `LayerProblem.alone`."""
    model, devices = session.model, session.cluster.devices
    fastest = max(range(len(devices)), key=lambda k: devices[k].speed * devices[k].cores)
    solo = fastest if len(devices) > 1 and _on_cpus(session) else -1
    sized = []
    for size in sizes:
        batch = model.feeds(with_batch(model.source, size))
        packed = save({name: value.contiguous() for name, value in batch.items()})
        sized.append(SizedLayers(model.programs(size), packed))
    shared, throttled = tuple(tied_layers(model.layers)), session.engine.name == "testbed"
    optimizer = session.optimizer, session.lr
    answers = session.group.order(
        "time_layers",
        [
            (tuple(sized), state, tuple(degrees), shared, optimizer, throttled, solo)
            for state in session.states
        ],
        limit_s=limits.patience(limits.FIRST_STEPS_S * len(sizes)),
    )
    return [found for found, _ in answers], min(1.0, *(alone for _, alone in answers))


def _links(
    session: LayerSession, nodes: list[str]
) -> tuple[tuple[Link, ...], IntArray, FloatArray]:
    """Messages between the first workers of every two nodes, and inside nodes of several.

    Last, of shape (W, 3), what a byte that a worker sends, one that it receives, and a message
    either way take of its processor, in seconds; 0 for the second worker of a node and so on.
    """
    devices = session.cluster.devices
    first: dict[str, list[int]] = {node: [] for node in nodes}
    for rank, device in enumerate(devices):
        first[device.node].append(rank)
    pairs = [
        # Inside a node its first two workers.
        (a, b, first[a][0], first[b][0 if a != b else 1])
        for a in nodes
        for b in nodes
        if a != b or len(first[a]) > 1
    ]
    ranks = tuple((source, target) for _, _, source, target in pairs)
    throttled = session.engine.name == "testbed"
    answers = session.group.order_all(
        "time_messages",
        ranks,
        MESSAGE_BYTES,
        throttled,
        limit_s=limits.patience(limits.FIRST_STEPS_S),
    )
    links = [INSIDE]
    index = np.zeros((len(nodes), len(nodes)), dtype=np.int64)
    for k, (a, b, source, _) in enumerate(pairs):
        *taken, longest, longest_s, _, _ = answers[source][k]
        links.append(_link((*MESSAGE_BYTES, longest), (*taken, longest_s)))
        index[nodes.index(a), nodes.index(b)] = len(links) - 1
    busy = np.zeros((len(devices), 3))
    for rank in range(len(devices)):
        sent = [answers[rank][k][-2:] for k, pair in enumerate(ranks) if pair[0] == rank]
        got = [answers[rank][k][-2:] for k, pair in enumerate(ranks) if pair[1] == rank]
        if sent and got:
            send, receive = np.median(sent, axis=0), np.median(got, axis=0)
            busy[rank] = send[0], receive[0], (send[1] + receive[1]) / 2
    return tuple(links), index, busy


def _link(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """A link of measured messages; shorter ones take no longer than at the rate of the longest.

    A short message may have waited for a CPU quota's next period, which a long one does once.
    """
    rate = sizes[-1] / seconds[-1]
    least = np.minimum(seconds, seconds[0] + np.array(sizes) / rate)
    # The long message may be no longer than the largest size.
    distinct = len(sizes) - (sizes[-1] == sizes[-2])
    ascending = np.maximum.accumulate(least)[None, :distinct]
    return Link(np.array([1]), np.array(sizes[:distinct], dtype=float), ascending)


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
    """Of one sample; NaN where a call has no formula."""
    if unknown_calls(model.step, layer):
        return math.nan
    return layer_flops(model.step, layer) / model.batch


def _item_bytes(dtype: str) -> int:
    import torch

    return int(torch.empty(0, dtype=getattr(torch, dtype)).element_size())
