"""Seconds of every operator of an OpenVINO model by its own counters, and of a change of device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

from placewright.capturing.files.model_file import Array, ModelFile
from placewright.capturing.files.openvino_graph import reason
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import UnsupportedError
from placewright.numerics.arrays import FloatArray
from placewright.runtime.model_files.contract import FilePlacement
from placewright.runtime.model_files.hetero import HeteroModel, compile_alone, hetero_of, open_core
from placewright.runtime.model_files.timing import LEAST, LONGEST_S, RUNS, WARM_UP, run_seconds

CHAIN, SMALL, LARGE = 8, 1 << 10, 1 << 19
"""Changes of device in the model that measures one, and elements that it passes on."""


def supported(file: ModelFile, device: Device) -> list[bool]:
    """Which operators OpenVINO has for a device."""
    core = open_core()
    name = "CPU" if device.name == "AUTO" and core.available_devices == ["CPU"] else device.name
    try:
        known = core.query_model(file.model, name)
    except RuntimeError as error:
        raise UnsupportedError(
            f"OpenVINO does not know the device {device.name!r}",
            where=file.source,
            by=f"it has {', '.join(['AUTO', *core.available_devices])}: {reason(error)}",
            hint="leave --on out, name the cluster's devices as OpenVINO does, "
            "or use --method analytic",
        ) from None
    return [op.name in known for op in file.graph.operators]


def operator_seconds(file: ModelFile, device: Device) -> FloatArray:
    """Shape (operators,): seconds on one device; ``inf`` where it does not have the operator.

    A fused kernel's time goes to the one of its operators that computes most. All are scaled by one
    factor that makes their sum the time of the whole model without counters.
    """
    has = supported(file, device)
    if not all(has):
        missing = [op for op, there in zip(file.graph.operators, has, strict=True) if not there]
        if len(missing) == len(has):
            return np.full(len(has), np.inf)
        raise UnsupportedError(
            f"{device.name} has no {missing[0].kind}, and so the model is not timed on it as a "
            "whole",
            where=f"{file.source}: {missing[0].name!r}",
            by=f"{len(missing)} of {len(has)} operators",
            hint="use --method analytic",
        )
    inputs = list(file.random_inputs().values())
    counted = compile_alone(file, device, PERF_COUNT=True)
    request = counted.create_infer_request()
    before = _counters(request, inputs, WARM_UP)
    runs = _affordable(request, inputs)
    after = _counters(request, inputs, 0)
    ends = WARM_UP + runs
    names = _kernel_names(counted, file)
    found = dict.fromkeys(file.graph.operator_names, 0.0)
    for kernel, mean_s in after.items():
        # A counter is the mean since the first inference, which is much longer than the others.
        warm_s = (mean_s * ends - before.get(kernel, 0.0) * WARM_UP) / runs
        if kernel in names:
            found[names[kernel]] += max(0.0, warm_s)
    del request, counted
    alone = np.array([found[name] for name in file.graph.operator_names])
    whole = whole_seconds(file, device)
    if not alone.any():
        alone = np.array([op.flops + op.bytes_accessed for op in file.graph.operators])
    return np.asarray(alone * (whole / alone.sum()), dtype=np.float64)


def whole_seconds(file: ModelFile, device: Device) -> float:
    """Median seconds of the unplaced model on one device."""
    request = compile_alone(file, device).create_infer_request()
    return median(_times(request, list(file.random_inputs().values())))


def placed_seconds(placement: FilePlacement) -> float:
    """Median seconds of a placed model.

    Raises `UnsupportedError`: OpenVINO does not take the placement, or only a repaired one.
    """
    with HeteroModel(placement) as placed:
        if placed.notes:
            raise UnsupportedError(placed.notes[0], where=placement.file.source)
        return median(_times(placed._request, list(placement.file.random_inputs().values())))


def _counters(request: Any, inputs: list[Array], runs: int) -> dict[str, float]:
    """Mean seconds of each kernel since the first inference, after so many more."""
    for _ in range(runs):
        request.infer(inputs)
    return {i.node_name: i.real_time.total_seconds() for i in request.get_profiling_info()}


def _affordable(request: Any, inputs: list[Array]) -> int:
    """Infer until `RUNS` or `LONGEST_S`, at least three times; how often."""
    began, runs = time.perf_counter(), 0
    while runs < RUNS and (runs < LEAST or time.perf_counter() - began < LONGEST_S):
        request.infer(inputs)
        runs += 1
    return runs


def _times(request: Any, inputs: list[Array]) -> list[float]:
    return run_seconds(lambda: request.infer(inputs))


def _kernel_names(compiled: Any, file: ModelFile) -> Mapping[str, str]:
    """Kernel -> the operator that takes its time."""
    work = {op.name: op.flops + op.elementwise_flops for op in file.graph.operators}
    found = {}
    for node in compiled.get_runtime_model().get_ordered_ops():
        names = str(node.rt_info["originalLayersNames"].value).split(",")
        own = [name for name in names if name in work]
        if own:
            found[node.get_friendly_name()] = max(own, key=lambda name: work[name])
    return found


def change_of_device(cluster: Cluster) -> tuple[float, float]:
    """Seconds, and seconds per byte, of passing a tensor from one device of HETERO to another.

    By chains of operators that change the device at every step beside chains that stay.
    """
    if len(cluster.devices) < 2:
        return 0.0, 0.0
    extra = []
    for elements in (SMALL, LARGE):
        alone, split = (_chain_seconds(cluster, elements, cut) for cut in (False, True))
        extra.append(max(0.0, split - alone) / CHAIN)
    per_byte = max(0.0, extra[1] - extra[0]) / (4.0 * (LARGE - SMALL))
    return extra[0], per_byte


def _chain_seconds(cluster: Cluster, elements: int, cut: bool) -> float:
    """Least seconds of a chain on the first two devices of a cluster: differences are small."""
    import openvino as ov
    from openvino import opset13 as ops

    given = ops.parameter([1, elements], np.float32, name="x")
    node, nodes = given, [given]
    for k in range(CHAIN + 1):
        node = ops.sigmoid(node, name=f"step{k}")
        nodes.append(node)
    end = ops.result(node, name="y")
    first, second = cluster.device_names[:2]
    for k, each in enumerate([*nodes, end]):
        step = min(max(k - 1, 0), CHAIN)
        each.rt_info["affinity"] = second if cut and step % 2 else first
    name, properties = hetero_of(cluster)
    compiled = open_core().compile_model(ov.Model([end], [given], "chain"), name, properties)
    request = compiled.create_infer_request()
    return min(_times(request, [np.zeros((1, elements), dtype=np.float32)]))
