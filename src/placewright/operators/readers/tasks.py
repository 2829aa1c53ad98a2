"""Task graphs that are described by names: dicts, and graphs of networkx."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import Range, Unlimited, checked, described_value
from placewright.operators.builder import ProblemBuilder, Seconds
from placewright.operators.problem import OperatorProblem

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster


@checked
def tasks(
    seconds: Mapping[str, Seconds],
    edges: Mapping[tuple[str, str], float] | None = None,
    *,
    cluster: Cluster | str | None = None,
    memory: Mapping[str, Unlimited] | None = None,
    pin: Mapping[str, str] | None = None,
    colocate: Sequence[Sequence[str]] = (),
    bandwidth: Unlimited | None = None,
    latency_s: float = 0.0,
    name: str = "tasks",
    **options: Any,
) -> OperatorProblem:
    """A task graph as a problem: what each task takes on each device, and what it sends to whom.

    Parameters
    ----------
    seconds
        Of every task by device, or by kind of device of the cluster; ``math.inf`` where it cannot
        run. One number is that of every device.
    edges
        Bytes by ``(producer, consumer)``.
    cluster
        A `Cluster`, or the name of its file or preset. Without one the devices are those that
        `seconds` names, linked by `bandwidth` and `latency_s`.
    memory
        Bytes that a task holds all the time, and bytes that a device has, by name.
    pin
        The only device allowed, by task.
    colocate
        Groups of tasks that share a device.
    bandwidth, latency_s
        Bytes per second and seconds of every link; ``math.inf`` where sending takes no time.
    options
        Other fields of `OperatorProblem`: ``objective``, ``links``, ``overlap``, ...

    Raises
    ------
    InputError
        A name that does not exist, a device without seconds, a cycle, edges without links (also
        those of 0 bytes: one that is sent in no time needs ``bandwidth=math.inf``).
    """
    if cluster is not None and bandwidth is not None:
        hint = "leave one of the two out"
        raise InputError("the cluster has its own links", where=f"{name}: bandwidth", hint=hint)
    if latency_s and bandwidth is None:
        hint = "give bandwidth too, math.inf where bytes take no time; a cluster has its own links"
        by = f"got {latency_s} s"
        raise InputError("is of no link", where=f"{name}: latency_s", by=by, hint=hint)
    devices = _devices(seconds, name) if cluster is None else _loaded(cluster)
    builder = OperatorProblem.builder(devices, name)
    if bandwidth is not None:
        builder.link_all(bandwidth=bandwidth, latency_s=latency_s)
    held = _of_tasks(builder, seconds, memory or {})
    for task, costs in seconds.items():
        builder.add_operator(task, costs, resident_bytes=held.get(task, 0.0))
    for (producer, consumer), nbytes in (edges or {}).items():
        builder.add_tensor(producer, consumer, nbytes)
    for task, device in (pin or {}).items():
        builder.pin(task, device)
    for group in colocate:
        builder.colocate(*group)
    return builder.build(**options)


@checked
def from_networkx(
    graph: Any, cluster: Cluster | str | None = None, *, nbytes: str = "bytes", **options: Any
) -> OperatorProblem:
    """A directed graph of networkx as a problem.

    Nodes have an attribute for each device, or each kind of device of the cluster: seconds. Other
    attributes are allowed where there is a cluster. Edges have an attribute with bytes. `options`
    are those of `tasks`.

    Parameters
    ----------
    nbytes
        The attribute of edges.

    Raises
    ------
    InputError
        No directed graph, an attribute that is missing, or what `tasks` refuses.
    """
    made = hasattr(graph, "is_directed") and not isinstance(graph, type)
    if not (made and hasattr(graph, "edges") and graph.is_directed()):
        by, hint = f"got {described_value(graph)}", "give a networkx.DiGraph"
        raise InputError("must be a directed graph", where="graph", by=by, hint=hint)
    for key in ("seconds", "edges"):
        if key in options:
            raise InputError("is what the graph has", where=key, hint="set attributes of the graph")
    name = options.setdefault("name", str(graph.name or "graph"))
    seconds = {str(node): dict(found) for node, found in graph.nodes(data=True)}
    if len(seconds) < len(graph):
        raise InputError("two nodes have the same name as text", where=name, hint="rename one")
    if cluster is not None:
        cluster = _loaded(cluster)
        keys = OperatorProblem.builder(cluster).keys
        seconds = {n: {k: v for k, v in row.items() if k in keys} for n, row in seconds.items()}
    edges: dict[tuple[str, str], float] = {}
    for source, target, size in graph.edges(data=nbytes):
        where = f"{name}: edge {source!s} -> {target!s}"
        if size is None:
            hint = "name the attribute that holds bytes by nbytes="
            raise InputError(f"has no attribute {nbytes!r}", where=where, hint=hint)
        real: Any = size if isinstance(size, Real) and not isinstance(size, bool) else math.nan
        if real not in Range():
            what, by = f"{nbytes!r} must be a number {Range()}", f"got {described_value(size)}"
            raise InputError(what, where=where, by=by, hint="give bytes as a number")
        edge = str(source), str(target)
        edges[edge] = edges.get(edge, 0) + real  # parallel edges are one tensor
    return tasks(seconds, edges, cluster=cluster, **options)


def _loaded(cluster: Cluster | str) -> Cluster:
    from placewright.cluster.files import load_cluster

    return load_cluster(cluster) if isinstance(cluster, str) else cluster


def _devices(seconds: Mapping[str, Any], name: str) -> list[str]:
    """Devices in the order in which tasks name them."""
    if not seconds:
        raise InputError("there is no task", where=f"{name}: seconds", hint="give at least one")
    named = [costs for costs in seconds.values() if isinstance(costs, Mapping)]
    if not named:
        where, hint = f"{name}: task {next(iter(seconds))!r}", "name the devices, or give a cluster"
        raise InputError("seconds name no device", where=where, hint=hint)
    return list(dict.fromkeys(device for costs in named for device in costs))


def _of_tasks(
    builder: ProblemBuilder, seconds: Mapping[str, Any], memory: Mapping[str, float]
) -> dict[str, float]:
    """Bytes that tasks hold; those of devices are set."""
    held = {}
    for name, nbytes in memory.items():
        if name in seconds and name in builder.device_names:
            where, hint = f"{builder.name}: memory of {name!r}", "call one of them something else"
            raise InputError("is a task and a device", where=where, hint=hint)
        if name in seconds:
            held[name] = nbytes
        elif name in builder.device_names:
            builder.limit_memory(name, nbytes)
        else:
            known = [*seconds, *builder.device_names]
            raise UnknownNameError("task or device", name, known, where=f"{builder.name}: memory")
    return held
