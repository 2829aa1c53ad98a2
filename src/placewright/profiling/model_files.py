"""Costs of a model that another runtime executes, on the devices of a cluster."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster.cluster import Cluster, Link
from placewright.cluster.devices import analytic_seconds
from placewright.errors import MissingDependencyError, UnsupportedError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Overlap
from placewright.profiling.profile_warnings import (
    NotMeasuredWarning,
    warn_of_cores,
    warn_of_uncounted,
)
from placewright.profiling.profiler import (
    Method,
    Profiler,
    ProfileTable,
    operator_problem,
    profile_key,
)
from placewright.runtime.model_files import FilePlacement
from placewright.runtime.model_files.hetero import placed_seconds
from placewright.runtime.model_files.onnx_sessions import (
    handover_seconds,
    onnxruntime_installed,
    operator_seconds,
)

if TYPE_CHECKING:
    from placewright.capturing.files.model_file import ModelFile
    from placewright.operators.problem import OperatorProblem

BLOCKS = 8
"""Blocks of operators in turns on two devices, by which the cost of a cut is measured."""

HANDOVER_BANDWIDTH = 1e13
"""Bytes per second between threads of one process, which hand over a reference."""


def profile_onnx(
    file: ModelFile,
    cluster: Cluster,
    *,
    method: Method = "auto",
    table: ProfileTable | None = None,
) -> OperatorProblem:
    """The problem of placing an ONNX model on CPUs (measured by ONNX Runtime) and other devices.

    Raises `UnsupportedError`: ONNX Runtime has no implementation of an operator.
    Raises `MissingDependencyError`: `method` measures, and ONNX Runtime is not installed.

    Parameters
    ----------
    method
        ``analytic`` computes from FLOPs and bytes; all others measure CPUs by ONNX Runtime's
        profiler, scaled by their ``speed``. ``auto`` computes where it is not installed.
    table
        Kept profile: its entries are not measured again.
    """
    measures = method != "analytic" and _installed(file, method)
    graph = file.graph
    profiler = Profiler(
        graph,
        "in-place" if measures else "analytic",
        None,
        table if table is not None else ProfileTable(),
        measure=lambda cores: operator_seconds(file, cores),
    )
    warn_of_cores(graph.name, [d for d in cluster.devices if profiler.lacks_cores(d)])
    warn_of_uncounted(graph, [d for d in cluster.devices if profiler.computes(d)])
    compute_s = np.stack([profiler.seconds(d) for d in cluster.devices], axis=1)
    return operator_problem(graph, _handing_over(cluster) if measures else cluster, compute_s)


def profile_openvino(
    file: ModelFile,
    cluster: Cluster,
    *,
    method: Method = "auto",
    table: ProfileTable | None = None,
) -> OperatorProblem:
    """The problem of placing a model on devices of OpenVINO's HETERO, one thing at a time.

    Operators are measured on each device by OpenVINO's counters, a change of device by chains of
    small operators and by two placements of the model in blocks; links that the cluster names add
    to it.

    Raises `UnsupportedError`: no device has an operator.

    `method`: ``analytic`` computes from FLOPs and bytes, all others measure.
    `table`: kept profile: its entries are not measured again.
    """
    from placewright.runtime.model_files.hetero import change_of_device, described, operator_seconds

    graph, kept = file.graph, table if table is not None else ProfileTable()
    if method == "analytic":
        compute_s = np.stack([analytic_seconds(graph.operators, d) for d in cluster.devices], 1)
        return operator_problem(graph, cluster, compute_s, overlap=Overlap.SERIAL)
    columns = []
    for device in cluster.devices:
        key = profile_key(graph, "openvino", described(device))
        if key not in kept.entries:
            kept.add(key, graph, operator_seconds(file, device))
        columns.append(kept.seconds(key, graph))
    compute_s = np.stack(columns, axis=1)
    _check_supported(file, compute_s)
    latency_s, per_byte = change_of_device(cluster)
    bandwidth = min(1.0 / max(per_byte, 1e-15), HANDOVER_BANDWIDTH)
    local = [Link(k.source, k.target, bandwidth, latency_s) for k in cluster.local_links()]
    linked = replace(cluster, links=(*cluster.links, *local))
    problem = operator_problem(graph, linked, compute_s, overlap=Overlap.SERIAL)
    extra_s = _cost_of_cuts(file, cluster, problem)
    apart = ~np.eye(problem.m, dtype=np.bool_)
    return problem.replace(latency_s=problem.latency_s + extra_s * apart)


def _cost_of_cuts(file: ModelFile, cluster: Cluster, problem: OperatorProblem) -> float:
    """Seconds that a tensor between devices costs beyond its link, by two placements in blocks.

    A cut also breaks fused kernels and makes both sides convert layouts, which neither the times of
    operators nor small chains show. 0 where OpenVINO does not take the placements.
    """
    if problem.m < 2 or problem.n < BLOCKS:
        return 0.0
    _, first, group = np.unique(problem.colocation, return_index=True, return_inverse=True)
    names, found = problem.operator_names, []
    for start in (0, 1):
        blocks = (np.arange(problem.n) * BLOCKS // problem.n + start) % 2
        place = blocks[first][group]
        judged = judge(problem, OperatorPlan(place))
        device = dict(zip(names, place.tolist(), strict=True))
        order = [names[i] for i in problem.topology.order]
        try:
            measured_s = placed_seconds(FilePlacement(file, cluster, device, order))
        except UnsupportedError:
            continue
        found.append((measured_s - judged.value) / max(1, _sent(problem, place)))
    return max(0.0, float(np.mean(found))) if found else 0.0


def _sent(problem: OperatorProblem, place: IntArray) -> int:
    """Tensors that go from one device to another, once per device."""
    reader = np.repeat(np.arange(problem.t), np.diff(problem.consumer_offsets))
    pairs = np.unique(np.stack([reader, place[problem.consumers]], axis=1), axis=0)
    return int((place[problem.tensor_producer[pairs[:, 0]]] != pairs[:, 1]).sum())


def _check_supported(file: ModelFile, compute_s: FloatArray) -> None:
    nowhere = np.flatnonzero(~np.isfinite(compute_s).any(axis=1))
    if len(nowhere):
        op = file.graph.operators[int(nowhere[0])]
        raise UnsupportedError(
            f"no device supports {op.kind}",
            where=f"{file.source}: {op.name!r}",
            by=f"{len(nowhere)} of {len(compute_s)} operators",
            hint="add a device that has it, or replace the operator",
        )


def _installed(file: ModelFile, method: Method) -> bool:
    if onnxruntime_installed():
        return True
    if method != "auto":
        purpose = f"profiling by the method {method}"
        raise MissingDependencyError("onnxruntime", extra="onnx", purpose=purpose)
    warnings.warn(
        f"costs of {file.graph.name} are computed from FLOPs and bytes: ONNX Runtime, which "
        "measures them, is not installed\n"
        "  next: pip install 'placewright[onnx]'",
        NotMeasuredWarning,
        stacklevel=3,
    )
    return False


def _handing_over(cluster: Cluster) -> Cluster:
    """Between devices of one node a value is handed from thread to thread."""
    latency_s = handover_seconds()
    local = [
        Link(link.source, link.target, HANDOVER_BANDWIDTH, latency_s)
        for link in cluster.local_links()
    ]
    given = [replace(link, latency_s=link.latency_s + latency_s) for link in cluster.links]
    return replace(cluster, links=(*given, *local))
