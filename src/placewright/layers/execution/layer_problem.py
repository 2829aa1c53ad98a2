"""A layer problem of a model: measured on workers, or computed from a cluster's description.

Measured are layers, messages and the optimizer. Where costs are computed, nothing is executed: the
passes of every layer, whole and split as plans may split it, are walked through on tensors without
data; each operation's FLOPs and bytes give its seconds on a kind of device (see
`placewright.cluster.devices`). Memory and collectives come from the same walk, exactly as they are
counted on workers. What only a worker can tell is left out: the processor time of messages, what
the allocator loses, gathering beside messages under ZeRO. Either way the costs are tables
(`CostTables`) first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from placewright.capturing.call_flops import work_of
from placewright.capturing.source import OptimizerName, source_of
from placewright.cluster.cluster import Cluster, Device
from placewright.cluster.devices import analytic_seconds
from placewright.errors import UnsupportedError
from placewright.graph.graph import Operator
from placewright.io.arguments import checked
from placewright.layers.chain import layer_flops
from placewright.layers.execution.layer_module import SizedLayers
from placewright.layers.execution.session import LayerSession, packed
from placewright.layers.execution.stage_orders import (
    TracedModel,
    inexact_layers,
    refusals,
    tensor_refusals,
    tied_layers,
)
from placewright.layers.execution.stage_step import BUCKET_MB
from placewright.layers.execution.timing import LayerTimer, LayerTimes
from placewright.layers.problem import LayerProblem, Training
from placewright.layers.tracing import with_batch
from placewright.layers.transfers import ring_times
from placewright.layers.workers import INSIDE, Link, Workers
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.runtime import limits

FRAMEWORK_BYTES = {"cpu": 280e6, "gpu": 500e6}
"""Held by a worker before any tensor: 274 to 291 MB measured on CPUs (docs/results/layers.md); a
CUDA context and its libraries, our estimate."""

UPDATE = {"sgd": (2.0, 12.0), "adam": (12.0, 28.0)}
"""FLOPs and bytes of an update per element: weight, gradient and both states in single precision
are read, all but the gradient written."""

LOOKUPS = ("aten.embedding.default", "aten.index_select.default")
"""Of their first argument only what indices pick is read: as much as the result."""


@checked
def layer_problem(
    model: Any,
    inputs: Any = None,
    cluster: Cluster | None = None,
    *,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
    optimizer: OptimizerName = "adam",
    exact: bool = True,
) -> LayerProblem:
    """Compute what every layer of a model costs on every worker of a cluster.

    Nothing is executed, so that the workers need not be there; `placewright.train`
    measures the same on real ones. Costs are those of the roofline model
    (doi:10.1145/1498765.1498785) at the peaks, bandwidths and efficiencies of the devices.

    Parameters
    ----------
    model, inputs, targets, loss_fn, optimizer, exact
        As of `placewright.train`.
    cluster
        The workers; this machine by default.

    Raises
    ------
    UnsupportedError
        The model cannot be traced, or the optimizer is not known.
    """
    source = source_of(model, inputs, loss_fn, targets, training=True, where="layer_problem")
    traced = TracedModel(source)
    workers = Workers(cluster or Cluster.detect())
    sizes = sizes_of(traced)
    framework = [FRAMEWORK_BYTES.get(d.kind, FRAMEWORK_BYTES["cpu"]) for d in workers.devices]
    return problem_of_tables(
        traced,
        workers,
        _computed_tables(traced, workers, sizes, optimizer),
        MessageCosts(*workers.described_links(), np.zeros((len(workers.devices), 3))),
        np.array(framework),
        sizes=sizes,
        moments=0 if optimizer == "sgd" else 2,
        exact=exact,
    )


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation that is executed inside, as an operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        work, name = work_of(function, args, kwargs or {}, made), str(function)
        written = _bytes(tree_leaves(made))
        read = [_bytes([value]) for value in tree_leaves((args, kwargs))]
        if name in LOOKUPS:
            read[0] = written
        self.operators.append(
            Operator(
                str(len(self.operators)),
                name,
                work.flops,
                0.0 if function.is_view else sum(read) + written,
                elementwise_flops=work.elementwise_flops,
            )
        )
        return made


class _LayerCounter(LayerTimer):
    """Runs layers on tensors without data: its clock is the number of operations so far."""

    def __init__(self, counted: _Counted, *args: Any) -> None:
        self.counted = counted
        super().__init__(*args)

    def clock(self) -> float:
        """Operations so far."""
        return float(len(self.counted.operators))

    def passes(self) -> tuple[list[Operator], list[int]]:
        """Operations of all passes, and how many each has: forward, backward, by layer."""
        # Gradients that are there are added to, as in every round of a timer but its first.
        for parameter in {p for module in self.modules for p in module.parameters()}:
            parameter.grad = torch.zeros_like(parameter)
        self.counted.operators.clear()
        self.warm = True
        self.round()
        counts = np.array([self.forward[-1], self.backward[-1]], dtype=np.int64)
        return self.counted.operators, counts.T.ravel().tolist()


def _computed_tables(
    model: TracedModel, workers: Workers, sizes: Sequence[int], optimizer: str
) -> CostTables:
    kinds, n, degrees = len(workers.kinds), len(model.layers), len(workers.degrees)
    first = [workers.devices[int(np.argmax(workers.kind == k))] for k in range(kinds)]
    times = np.zeros((2, kinds, degrees, len(sizes), n))
    saved, elements = np.zeros((n, degrees)), np.zeros((n, degrees))
    for b, size in enumerate(sizes):
        for t, degree in enumerate(workers.degrees):
            counter, passes = _walked(model, size, degree)
            for k, device in enumerate(first):
                times[:, k, t, b] = _seconds(*passes, device)
            saved[:, t], elements[:, t] = counter.saved / size, counter.elements
    update = Operator("update", "aten.add.Tensor", 0.0, UPDATE[optimizer][1] * elements[:, 0].sum())
    return CostTables(
        times[0],
        times[1],
        saved,
        counter.sent / sizes[-1],
        elements,
        np.array([analytic_seconds([update], device)[0] for device in first]),
        1.0,
        (math.nan, 1),
    )


def _walked(
    model: TracedModel, size: int, degree: int
) -> tuple[_LayerCounter, tuple[list[Operator], list[int]]]:
    """The layers on so many samples, split over so many workers."""
    feeds, programs = model.feeds(with_batch(model.source, size)), model.programs(size)
    held = model.held()
    trained = {name for program in programs for name in program.parameters.values()}
    counted = _Counted()
    with FakeTensorMode():
        state = _without_data(held)
        parameters = {n: nn.Parameter(x) for n, x in state.items() if n in trained}
        counter = _LayerCounter(
            counted,
            state | parameters,
            torch.device("cpu"),
            1.0,
            programs,
            _without_data(feeds),
            degree,
            frozenset(tied_layers(model.layers)),
        )
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autograd.set_detect_anomaly(False),  # it reads values, which fakes have not
            counted,
        ):
            return counter, counter.passes()


def _without_data(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the same shapes, inside a `FakeTensorMode`."""
    return {
        name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for name, x in tensors.items()
    }


def _seconds(operators: Sequence[Operator], counts: Sequence[int], device: Device) -> FloatArray:
    """Shape (2, n): of each layer's forward and backward pass on a device."""
    total = np.concatenate([[0.0], np.cumsum(analytic_seconds(operators, device))])
    ends = np.cumsum([0, *counts])
    taken: FloatArray = np.diff(total[ends]).reshape(-1, 2).T
    return taken


def _bytes(values: Iterable[Any]) -> float:
    return float(sum(x.numel() * x.element_size() for x in values if isinstance(x, Tensor)))


MESSAGE_BYTES = (1 << 10, 1 << 16, 1 << 20)

TENSORS = 8
"""Parameters of a layer whose sharding is timed beside that of layers with one."""


def measured_problem(
    session: LayerSession, *, exact: bool = False, sizes: Sequence[int] = ()
) -> LayerProblem:
    """Measure everything that plans for this model on these workers cost.

    All workers measure at once, as they will train at once.

    `exact`: layers with dropout or batch norm have to see the whole batch.
    `sizes`: of micro-batches to measure, ascending; a few up to the batch by default.
    """
    model, workers = session.model, Workers(session.cluster)
    sizes = tuple(sizes) or sizes_of(model)
    problem = problem_of_tables(
        model,
        workers,
        _measured_tables(session, sizes, workers),
        _network(session, workers),
        np.array(session.held_bytes(), dtype=np.float64),
        sizes=sizes,
        moments=len(session.update.moments),
        exact=exact,
    )
    return with_shards(session, problem)


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


def _measured_tables(session: LayerSession, sizes: Sequence[int], workers: Workers) -> CostTables:
    kinds, n = len(workers.kinds), len(session.model.layers)
    shape = (kinds, len(workers.degrees), len(sizes), n)
    forward, backward, optimizer = np.zeros(shape), np.zeros(shape), np.zeros(kinds)
    answers, alone = time_layers(session, sizes, workers)
    # Means over the workers of a kind.
    count = np.bincount(workers.kind)
    for k, by_size in zip(workers.kind, answers, strict=True):
        for b, by_degree in enumerate(by_size):
            for t, times in enumerate(by_degree):
                forward[k, t, b] += times.forward_s / count[k]
                backward[k, t, b] += times.backward_s / count[k]
            optimizer[k] += by_degree[0].optimizer_s / count[k] / len(sizes)
    largest, middle = answers[0][-1], (len(sizes) - 1) // 2
    return CostTables(
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
    session: LayerSession, sizes: Sequence[int], workers: Workers
) -> tuple[list[list[list[LayerTimes]]], float]:
    """Costs of the layers by worker, number of samples and tensor degree; `LayerProblem.alone`."""
    model, devices = session.model, workers.devices
    fastest = max(range(len(devices)), key=lambda k: devices[k].speed * devices[k].cores)
    solo = fastest if len(devices) > 1 and workers.on_cpus else -1
    sized = []
    for size in sizes:
        batch = model.feeds(with_batch(model.source, size))
        sized.append(SizedLayers(model.programs(size), packed(batch)))
    shared, throttled = tuple(tied_layers(model.layers)), session.engine.name == "testbed"
    answers = session.group.order(
        "time_layers",
        [
            (tuple(sized), state, workers.degrees, shared, session.update, throttled, solo)
            for state in session.states
        ],
        limit_s=limits.patience(limits.FIRST_STEPS_S * len(sizes)),
    )
    return [found for found, _ in answers], min(1.0, *(alone for _, alone in answers))


def _network(session: LayerSession, workers: Workers) -> MessageCosts:
    """Messages between the first workers of every two nodes, and inside nodes of several."""
    nodes, pairs = len(workers.nodes), workers.node_pairs()
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
    index = np.zeros((nodes, nodes), dtype=np.int64)
    for k, (a, b, source, _) in enumerate(pairs):
        *taken, longest, longest_s, _, _ = answers[source][k]
        links.append(_link((*MESSAGE_BYTES, longest), (*taken, longest_s)))
        index[a, b] = len(links) - 1
    busy = np.zeros((len(workers.devices), 3))
    for rank in range(len(busy)):
        sent = [answers[rank][k][-2:] for k, pair in enumerate(ranks) if pair[0] == rank]
        got = [answers[rank][k][-2:] for k, pair in enumerate(ranks) if pair[1] == rank]
        if sent and got:
            send, receive = np.median(sent, axis=0), np.median(got, axis=0)
            busy[rank] = send[0], receive[0], (send[1] + receive[1]) / 2
    return MessageCosts(tuple(links), index, busy)


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
        flops=np.array([layer_flops(model.step, layer) / model.batch for layer in model.layers]),
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


def sizes_of(model: TracedModel) -> tuple[int, ...]:
    """Micro-batch sizes that are measured: the batch alone where the model takes no part of it."""
    if model.split.fails:
        return (model.batch,)
    return traced_alike(model, measured_sizes(model.batch, whole=bool(inexact_layers(model))))


def measured_sizes(batch: int, *, whole: bool = False) -> tuple[int, ...]:
    """Micro-batch sizes that are measured; others are interpolated.

    A single sample is one of them: dispatching calls takes a part of it that samples do not share.
    Not where a layer looks at a batch as a `whole`: batch norm may refuse a single sample.
    """
    least = min(2, batch) if whole else 1
    parts = {max(least, batch // 8), max(least, batch // 3), batch}
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


def _item_bytes(dtype: str) -> int:
    import torch

    return int(torch.empty(0, dtype=getattr(torch, dtype)).element_size())
