"""OpenVINO's HETERO as an engine: an affinity for every operator, subgraphs one after another.

A device of the cluster is a device of OpenVINO by its name (``CPU``, ``AUTO``, ``GPU``, ``NPU``);
its ``cores`` are its threads and its ``precision`` is what it computes in. On a machine with only a
CPU, ``HETERO:AUTO,CPU`` really splits: AUTO runs its part on the same CPU with settings of its own.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np

from placewright.capturing.files.model_file import Array, ModelFile
from placewright.capturing.files.openvino_graph import reason
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import UnsupportedError, check_known
from placewright.numerics.arrays import FloatArray
from placewright.runtime.model_files import (
    LEAST,
    LONGEST_S,
    RUNS,
    WARM_UP,
    FilePlacement,
    run_seconds,
    threads_of,
)

PRECISIONS = ("f32", "bf16", "f16")

BLOCKS = (2, 4, 8, 16, 32, 64, 128)
"""Sizes of the blocks into which a placement is repaired, in operators."""

AFFINITY = ("placewright", "affinity")
"""Where the IR keeps the plan: JSON, device by friendly name, in the model's ``rt_info``."""


class _SignalStack(ctypes.Structure):
    """``stack_t`` of Linux."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_DISABLE = _SignalStack(None, 2, 0)  # SS_DISABLE


def open_core() -> Any:
    """An ``openvino.Core`` with its plugins loaded, after which Ctrl-C still works.

    The CPU's plugin gives the calling thread a stack for signals and takes it back when it is
    unloaded; where two were loaded, one that is freed stays in place (2026.4.1), and Python's
    handler, which runs there, ends the process by a segmentation fault. Without such a stack
    handlers run on the thread's own.
    """
    import openvino as ov

    core = ov.Core()
    if sys.platform == "linux" and core.available_devices:
        ctypes.CDLL(None).sigaltstack(ctypes.byref(_DISABLE), None)
    return core


def settings_of(device: Device) -> dict[str, Any]:
    """Threads and precision of a device, as OpenVINO's CPU takes them."""
    precision = device.precision or "f32"
    check_known("precision", precision, PRECISIONS, where=f"device {device.name!r}")
    threads = threads_of(device)
    return {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_HYPER_THREADING": True,
    }


def hetero_of(cluster: Cluster) -> tuple[str, dict[str, Any]]:
    """Name and properties of the HETERO device of a cluster.

    The properties are one string: in 2026.4 a dictionary gives AUTO's part the settings of CPU, and
    a nested one ends the process.

    Raises `UnknownNameError`: a device that OpenVINO does not have here.
    """
    here = ["AUTO", *open_core().available_devices]
    parts = []
    for device in cluster.devices:
        check_known("OpenVINO device", device.name, here, where=cluster.name)
        own = ",".join(f"{key}:{_text(value)}" for key, value in settings_of(device).items())
        if device.name == "AUTO":
            parts.append(f"AUTO:{{DEVICE_PROPERTIES:{{CPU:{{{own}}}}}}}")
        elif device.name == "CPU":
            parts.append(f"CPU:{{{own}}}")
        elif device.precision:
            parts.append(f"{device.name}:{{INFERENCE_PRECISION_HINT:{device.precision}}}")
    name = "HETERO:" + ",".join(cluster.device_names)
    return name, {"DEVICE_PROPERTIES": "{" + ",".join(parts) + "}"}


def _text(value: object) -> str:
    """As OpenVINO's properties spell it."""
    return ("YES" if value else "NO") if isinstance(value, bool) else str(value)


def compile_alone(file: ModelFile, device: Device, **properties: Any) -> Any:
    """The whole model on one device with its settings, without HETERO.

    Raises `UnsupportedError`: OpenVINO does not take it.
    """
    core = open_core()
    on_cpu = device.name == "CPU" or core.available_devices == ["CPU"]
    name = "CPU" if on_cpu else device.name
    given = settings_of(device) if on_cpu else {}
    return _compiled(core, file.model.clone(), name, given | properties, file.source)


def _compiled(core: Any, model: Any, name: str, properties: Mapping[str, Any], where: str) -> Any:
    try:
        return core.compile_model(model, name, dict(properties))
    except RuntimeError as error:
        raise UnsupportedError(
            f"OpenVINO does not compile the model for {name}",
            where=where,
            by=reason(error),
            hint="place it otherwise; `openvino.Core().query_model` names supported operators",
        ) from error


def affinities(model: Any, device: Mapping[str, str]) -> dict[str, str]:
    """Device by friendly name of every node.

    Constants and inputs follow their readers, the first operator where results alone read them;
    results are where they are made.
    """
    found, results = dict(device), {}
    first = next(iter(device.values()))
    for node in reversed(model.get_ordered_ops()):  # readers before what they read
        name = node.get_friendly_name()
        if node.get_type_name() == "Result":
            results[name] = node.input_value(0).get_node().get_friendly_name()
        elif name not in found:
            targets = [t for port in node.outputs() for t in port.get_target_inputs()]
            readers = [t.get_node().get_friendly_name() for t in targets]
            found[name] = next((found[r] for r in readers if r in found), first)
    return found | {name: found[source] for name, source in results.items()}


def set_affinities(model: Any, device: Mapping[str, str]) -> None:
    """Write ``rt_info["affinity"]`` of every node."""
    every = affinities(model, device)
    for node in model.get_ordered_ops():
        node.rt_info["affinity"] = every[node.get_friendly_name()]


class HeteroModel:
    """A placed OpenVINO model; see `PlacedFile`.

    A placement that OpenVINO does not compile is repaired: operators in topological order form
    blocks, each on the device that most of its operators had, ever larger ones until it compiles.

    `device`: where each operator runs, after repairs.
    Raises `UnsupportedError`: no repair compiles; says why.
    """

    def __init__(self, placement: FilePlacement) -> None:
        self.file, self.cluster = placement.file, placement.cluster
        self.emulated = ""
        names = placement.cluster.device_names
        wanted = {name: names[d] for name, d in placement.device.items()}
        self._name, self._properties = hetero_of(placement.cluster)
        self._core, refused = open_core(), ""
        for block in (1, *BLOCKS):
            self.device = in_blocks(wanted, block, _groups(self.file))
            try:
                self._compiled = self._compile()
                self._request = self._ready(self._compiled)
                break
            except UnsupportedError as error:
                refused = refused or error.by
        else:
            raise UnsupportedError(
                f"OpenVINO compiles the placement for {self._name} in no repaired form",
                where=self.file.source,
                by=refused,
                hint="use fewer cuts, or one device",
            )
        moved = sum(self.device[name] != d for name, d in wanted.items())
        self.notes: Sequence[str] = ()
        if block > 1:
            self.notes = (f"repaired into blocks of {block} operators, {moved} moved: {refused}",)

    @property
    def engine(self) -> str:
        """The runtime, its devices and their settings, and repairs."""
        import openvino as ov

        devices = ", ".join(described(d) for d in self.cluster.devices)
        return "; ".join(
            [f"openvino {ov.__version__.split('-')[0]} {self._name}: {devices}", *self.notes]
        )

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One step: outputs by name."""
        made = self._request.infer([inputs[spec.name] for spec in self.file.inputs])
        return dict(zip(self.file.outputs, made.values(), strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        del self._request, self._compiled

    def _ready(self, compiled: Any) -> Any:
        """A request that has run once: some placements are refused only then."""
        try:
            request = compiled.create_infer_request()
            request.infer(list(self.file.random_inputs().values()))
        except RuntimeError as error:
            raise UnsupportedError(
                f"{self._name} does not run the placement",
                where=self.file.source,
                by=reason(error),
                hint="use fewer cuts, or one device",
            ) from error
        return request

    def _compile(self) -> Any:
        model = self.file.model.clone()
        set_affinities(model, self.device)
        return _compiled(self._core, model, self._name, self._properties, self.file.source)


def described(device: Device) -> str:
    """``AUTO bf16 2 threads``."""
    return f"{device.name} {device.precision or 'f32'} {threads_of(device)} threads"


def _groups(file: ModelFile) -> dict[str, str]:
    return {op.name: op.colocation for op in file.graph.operators if op.colocation}


def in_blocks(device: Mapping[str, str], size: int, groups: Mapping[str, str]) -> dict[str, str]:
    """Blocks of so many operators in the given order, each on its most frequent device.

    Operators of one group stay together: on the device of the first of them.
    """
    names = list(device)
    found: dict[str, str] = {}
    for start in range(0, len(names), size):
        block = names[start : start + size]
        most = Counter(device[name] for name in block).most_common(1)[0][0]
        found |= dict.fromkeys(block, most)
    home: dict[str, str] = {}
    for name in names:
        if name in groups:
            found[name] = home.setdefault(groups[name], found[name])
    return found


def export_hetero(placed: HeteroModel, folder: Path) -> list[Path]:
    """Write ``model.xml`` and ``model.bin``, the plan in the model's ``rt_info``, and a manifest.

    OpenVINO does not write ``rt_info["affinity"]`` of nodes: `load_exported` sets it again from
    what the model's own ``rt_info`` says, which is three lines in any program.
    """
    import openvino as ov

    model = placed.file.model.clone()
    every = affinities(model, placed.device)
    model.set_rt_info(json.dumps(every), list(AFFINITY))
    name, properties = hetero_of(placed.cluster)
    path = folder / "model.xml"
    ov.save_model(model, str(path), compress_to_fp16=False)
    manifest = folder / "manifest.json"
    data = {
        "schema_version": 1,
        "format": "openvino",
        "model": path.name,
        "device": name,
        "properties": properties,
        "affinity": every,
    }
    manifest.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return [manifest, path, path.with_suffix(".bin")]


def load_exported(manifest: Path) -> Any:
    """The compiled model of what `export_hetero` wrote, its affinities from the IR."""
    data = json.loads(manifest.read_text(encoding="utf-8"))
    core = open_core()
    model = core.read_model(str(manifest.parent / data["model"]))
    affinity = json.loads(model.get_rt_info(list(AFFINITY)).value)
    for node in model.get_ordered_ops():
        node.rt_info["affinity"] = affinity[node.get_friendly_name()]
    where = str(manifest)
    return _compiled(core, model, data["device"], data["properties"], where)


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
