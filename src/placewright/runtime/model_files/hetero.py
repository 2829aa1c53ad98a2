"""OpenVINO's HETERO as an engine: an affinity for every operator, subgraphs one after another.

A device of the cluster is a device of OpenVINO by its name (``CPU``, ``AUTO``, ``GPU``, ``NPU``);
its ``cores`` are its threads and its ``precision`` is what it computes in. On a machine with only a
CPU, ``HETERO:AUTO,CPU`` really splits: AUTO runs its part on the same CPU with settings of its own.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from placewright.capturing.files.model_file import Array, ModelFile
from placewright.capturing.files.openvino_graph import reason
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import UnknownNameError, UnsupportedError
from placewright.runtime.model_files.contract import FilePlacement
from placewright.runtime.model_files.timing import threads_of

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
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS, where=f"device {device.name!r}")
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
        if device.name not in here:
            raise UnknownNameError("OpenVINO device", device.name, here, where=cluster.name)
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
    """Device by friendly name of every node: constants and inputs follow their readers."""
    found = dict(device)
    for node in reversed(model.get_ordered_ops()):  # readers before what they read
        name = node.get_friendly_name()
        if name not in found and node.get_type_name() == "Result":
            source = node.input_value(0).get_node().get_friendly_name()
            if source in device:
                found[name] = device[source]
        elif name not in found:
            targets = [t for port in node.outputs() for t in port.get_target_inputs()]
            readers = [t.get_node().get_friendly_name() for t in targets]
            found[name] = next((found[r] for r in readers if r in found), "")
    first = next(iter(device.values()))
    return {name: where or first for name, where in found.items()}


def set_affinities(model: Any, device: Mapping[str, str]) -> None:
    """Write ``rt_info["affinity"]`` of every node."""
    every = affinities(model, device)
    for node in model.get_ordered_ops():
        name = node.get_friendly_name()
        source = "" if node.get_type_name() != "Result" else _producer(node)
        node.rt_info["affinity"] = every.get(name) or every[source]


def _producer(node: Any) -> str:
    return str(node.input_value(0).get_node().get_friendly_name())


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
    manifest.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "format": "openvino",
                "model": path.name,
                "device": name,
                "properties": properties,
                "affinity": every,
            },
            indent=1,
        ),
        encoding="utf-8",
    )
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
