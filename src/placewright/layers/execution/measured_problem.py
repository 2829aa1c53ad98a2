"""A layer problem from measurements on the workers themselves: layers, messages, optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.layers.costs.rings import ring_times
from placewright.layers.execution.cost_tables import (
    CostTables,
    Network,
    measured_sizes,
    problem_of_tables,
    traced_alike,
)
from placewright.layers.execution.orders import SizedLayers
from placewright.layers.execution.refusals import inexact_layers
from placewright.layers.execution.session import LayerSession, packed
from placewright.layers.execution.stage_orders import tied_layers
from placewright.layers.execution.timing import LayerTimes
from placewright.layers.links import Link
from placewright.layers.problem import LayerProblem
from placewright.layers.profile.tracing import with_batch
from placewright.layers.workers import INSIDE, Workers
from placewright.runtime import limits

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
    usual = measured_sizes(model.batch, whole=bool(inexact_layers(model)))
    sizes = tuple(sizes) or traced_alike(model, usual)
    problem = problem_of_tables(
        model,
        workers,
        _tables(session, sizes, workers),
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


def _tables(session: LayerSession, sizes: Sequence[int], workers: Workers) -> CostTables:
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


def _network(session: LayerSession, workers: Workers) -> Network:
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
    return Network(tuple(links), index, busy)


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
