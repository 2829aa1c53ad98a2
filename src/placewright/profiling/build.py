"""profile(graph, cluster) -> OperatorProblem: what each operator costs on each device."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, MissingDependencyError
from placewright.graph.graph import Graph
from placewright.graph.program import Program
from placewright.io.arguments import checked
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap
from placewright.operators.sizes import NO_VIEW, OF_RESIDENT
from placewright.profiling.profile_warnings import (
    NotMeasuredWarning,
    warn_of_cores,
    warn_of_uncounted,
)
from placewright.profiling.profiler import MeasuringMethod, Profiler, gpus_here, torch_installed
from placewright.profiling.table import ProfileTable

if TYPE_CHECKING:
    from placewright.io.tensor_files import AnyTensor

Method = Literal["auto", "in-place", "isolated", "analytic"]


@checked
def profile(
    graph: Graph,
    cluster: Cluster,
    *,
    state: Mapping[str, AnyTensor] | None = None,
    method: Method = "auto",
    table: ProfileTable | None = None,
    objective: Objective | str = Objective.LATENCY,
    links: Links | str = Links.CONTENDED,
    overlap: Overlap | str = Overlap.PARALLEL,
) -> OperatorProblem:
    """Find a graph's costs on a cluster.

    Parameters
    ----------
    state
        Real tensors for the program inputs; needed for ``in-place``.
    method
        ``in-place`` executes the step here and times every operator; ``isolated`` times one
        operator per signature; ``analytic`` computes from FLOPs and bytes; ``auto`` takes the
        first of these that is possible, the last one (and a `NotMeasuredWarning`) where PyTorch
        is not installed. CPUs, and GPUs that are here, are measured and scaled by their
        ``speed``; devices of other kinds are always analytic, and so is an operator that cannot
        be measured alone. On a GPU whose memory might not hold the step, operators are timed one
        at a time. A CPU with more cores than this machine is analytic where its ``peak_flops`` is
        known, else measured with fewer cores; both raise a `TooFewCoresWarning`.
    table
        Kept profile: its entries are not measured again, new measurements are added to it.

    Returns
    -------
    A problem whose operators and tensors are those of the graph, in the same order.

    Raises
    ------
    InputError
        ``in-place`` without a program or without state.
    MissingDependencyError
        `method` measures, and PyTorch is not installed.
    """
    table = table if table is not None else ProfileTable()
    profiler = Profiler(graph, _measuring_method(graph, state, method), state, table)
    if not torch_installed():
        profiler = _without_torch(profiler, cluster, method)
    gpus = {} if profiler.method == "analytic" else gpus_here(cluster.devices)
    warn_of_cores(graph.name, [d for d in cluster.devices if profiler.lacks_cores(d)])
    warn_of_uncounted(graph, [d for d in cluster.devices if profiler.computes(d, gpus.get(d.name))])
    compute_s = np.stack([profiler.seconds(d, gpus.get(d.name)) for d in cluster.devices], axis=1)
    return operator_problem(
        graph,
        profiler.delivered(cluster, measure=torch_installed()),
        compute_s,
        objective=Objective(objective),
        links=Links(links),
        overlap=Overlap(overlap),
    )


def _measuring_method(graph: Graph, state: object, method: Method) -> MeasuringMethod:
    runnable = isinstance(graph.program, Program)
    if method == "in-place" and (state is None or not runnable):
        raise InputError(
            "in-place profiling executes the model and needs its program and its weights",
            where=graph.name,
            hint="give the model itself, or use --method isolated or analytic",
        )
    if method != "auto":
        return method
    if not runnable:
        return "analytic"
    return "in-place" if state is not None else "isolated"


def _without_torch(profiler: Profiler, cluster: Cluster, requested: Method) -> Profiler:
    """The profiler if a kept profile has all that it would measure, else one that computes."""
    if not any(profiler.must_measure(device) for device in cluster.devices):
        return profiler
    if requested != "auto":
        purpose = f"profiling by the method {requested}"
        raise MissingDependencyError("torch", extra="torch", purpose=purpose)
    warnings.warn(
        f"costs of {profiler.graph.name} are computed from FLOPs and bytes: PyTorch, which "
        "measures them, is not installed\n"
        "  next: pip install 'placewright[torch]', or profile with --table where it is installed",
        NotMeasuredWarning,
        stacklevel=3,
    )
    return replace(profiler, method="analytic")


def operator_problem(
    graph: Graph,
    cluster: Cluster,
    compute_s: FloatArray,
    *,
    objective: Objective = Objective.LATENCY,
    links: Links = Links.CONTENDED,
    overlap: Overlap = Overlap.PARALLEL,
) -> OperatorProblem:
    """The problem of placing `graph` on `cluster` at these costs, shape (operators, devices)."""
    position = {op.name: i for i, op in enumerate(graph.operators)}
    latency, per_byte, channel, channel_names = cluster.link_arrays()
    consumers = [[position[c] for c in tensor.consumers] for tensor in graph.tensors]
    return OperatorProblem(
        name=graph.name,
        operator_names=graph.operator_names,
        device_names=cluster.device_names,
        compute_s=compute_s,
        tensor_names=tuple(t.name for t in graph.tensors),
        tensor_producer=np.array([position[t.producer] for t in graph.tensors], dtype=np.int64),
        tensor_bytes=np.array([t.bytes for t in graph.tensors], dtype=np.float64),
        consumer_offsets=np.cumsum([0, *map(len, consumers)]),
        consumers=np.array([c for group in consumers for c in group], dtype=np.int64),
        latency_s=latency,
        seconds_per_byte=per_byte,
        channel=channel,
        channel_names=channel_names,
        alias_of=_alias_of(graph),
        resident_bytes=np.array([op.resident_bytes for op in graph.operators], dtype=np.float64),
        memory_bytes=np.array([d.memory_bytes for d in cluster.devices]),
        colocation=_groups(graph),
        pinned=np.full(len(graph.operators), -1, dtype=np.int64),
        objective=objective,
        links=links,
        overlap=overlap,
        device_kinds=tuple(d.kind for d in cluster.devices),
        operator_modules=tuple(op.module for op in graph.operators),
        modules=graph.modules,
        operator_kinds=tuple(op.kind for op in graph.operators),
        output_shapes=tuple(op.outputs[0].shape if op.outputs else () for op in graph.operators),
        micro_batch=np.array([op.micro_batch for op in graph.operators], dtype=np.int64),
        program_order=any(op.from_weights for op in graph.operators),
    )


def _alias_of(graph: Graph) -> IntArray:
    """Shape (tensors,): what each tensor is a view of, as `OperatorProblem.alias_of` has it."""
    position = {tensor.name: k for k, tensor in enumerate(graph.tensors)}
    return np.array(
        [position.get(t.view_of, OF_RESIDENT) if t.view_of else NO_VIEW for t in graph.tensors],
        dtype=np.int64,
    )


def _groups(graph: Graph) -> IntArray:
    """A number per colocation group; operators without a group get a number each."""
    numbers: dict[str, int] = {}
    keys = [
        f"group {op.colocation}" if op.colocation else f"own {op.name}" for op in graph.operators
    ]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
