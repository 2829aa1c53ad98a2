"""Costs of a model that another runtime executes, on the devices of a cluster."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster.cluster import Cluster, Link
from placewright.errors import MissingDependencyError
from placewright.profiling.build import Method, operator_problem
from placewright.profiling.profile_warnings import (
    NotMeasuredWarning,
    warn_of_cores,
    warn_of_uncounted,
)
from placewright.profiling.profiler import Profiler
from placewright.profiling.table import ProfileTable
from placewright.runtime.model_files.onnx_sessions import onnxruntime_installed
from placewright.runtime.model_files.onnx_timing import handover_seconds, operator_seconds

if TYPE_CHECKING:
    from placewright.capturing.files.model_file import ModelFile
    from placewright.operators.problem import OperatorProblem

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

    Parameters
    ----------
    method
        ``analytic`` computes from FLOPs and bytes; all others measure CPUs by ONNX Runtime's
        profiler, scaled by their ``speed``. ``auto`` computes where it is not installed.
    table
        Kept profile: its entries are not measured again.

    Raises
    ------
    UnsupportedError
        ONNX Runtime has no implementation of an operator.
    MissingDependencyError
        `method` measures, and ONNX Runtime is not installed.
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
