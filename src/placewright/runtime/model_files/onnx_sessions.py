"""ONNX Runtime as an engine: a thread and sessions for each device, parts in plan order.

A device is a thread with as many cores as the cluster gives it; where the machine has enough, each
device has cores of its own. Values go from device to device by reference. With `emulate`, a part on
a device of speed 0.5 lasts twice as long as here, and a value arrives when its link has delivered
it: links that share a channel deliver one value after another.

A part is one sub-model for a stretch of operators on one device. `export_onnx` writes the parts and
a manifest by which plain ONNX Runtime runs them.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np

from placewright.capturing.files.model_file import Array, ModelFile
from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, MissingDependencyError, RunError, UnsupportedError
from placewright.io.scratch import Scratch, private_temporary_files
from placewright.io.stored import write_file
from placewright.numerics.arrays import FloatArray
from placewright.runtime.model_files import WARM_UP, FilePlacement, run_seconds, threads_of

PROVIDERS = {"cpu": "CPUExecutionProvider", "gpu": "CUDAExecutionProvider"}
"""Execution provider by kind of device."""


def onnxruntime_installed() -> bool:
    """Whether ONNX Runtime is installed; it is not loaded."""
    return importlib.util.find_spec("onnxruntime") is not None


def load_onnxruntime() -> Any:
    """Import ONNX Runtime, which otherwise reports its use to Microsoft.

    For that it writes ``.ses`` into the temporary folder, through whatever link bears that name.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with private_temporary_files():
        return importlib.import_module("onnxruntime")


def open_session(
    model: str | bytes,
    where: str,
    *,
    threads: int = 1,
    kind: str = "cpu",
    optimise: bool = True,
    profile: str = "",
) -> Any:
    """An ``onnxruntime.InferenceSession``.

    `where`: the model, for messages.
    `profile`: prefix of the file of ONNX Runtime's own profiler; empty for none.
    Raises `MissingDependencyError`: ONNX Runtime is not installed.
    Raises `UnsupportedError`: it has no implementation of an operator, or no provider for the kind
    of device.
    """
    if not onnxruntime_installed():
        raise MissingDependencyError("onnxruntime", extra="onnx", purpose=f"running {where}")
    ort = load_onnxruntime()
    provider = PROVIDERS.get(kind, "")
    if provider not in ort.get_available_providers():
        raise UnsupportedError(
            f"ONNX Runtime has no execution provider for devices of kind {kind!r} here",
            where=where,
            by=f"available: {', '.join(ort.get_available_providers())}",
            hint="place it on CPUs, or install the ONNX Runtime build for that device",
        )
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Idle pools must not take the cores of other devices.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    try:
        return ort.InferenceSession(model, options, providers=[provider])
    except Exception as error:  # its classes derive from Exception alone
        raise UnsupportedError(
            "ONNX Runtime does not take the model",
            where=where,
            by=" ".join(str(error).split())[-300:],
            hint="replace the operator that it names, or install a build that has it",
        ) from error


FOREIGN = ("bfloat16", "float8", "float4", "int4", "uint4", "int2", "uint2")
"""Beginnings of ONNX Runtime's types that NumPy does not have."""


OF_PACKAGE = 2
"""What NumPy says of types that a package has added, such as those of ``ml_dtypes``."""


def run_session(
    session: Any, outputs: Iterable[str], values: Mapping[str, Any], where: str
) -> list[Any]:
    """What ``session.run`` returns; values of types that NumPy does not have are ``OrtValue``.

    Raises `RunError`: ONNX Runtime failed.
    """
    types = {made.name: made.type.removeprefix("tensor(") for made in session.get_outputs()}
    wanted = list(outputs)
    foreign = any(types[name].startswith(FOREIGN) for name in wanted)
    try:
        held = {x.name: _held(values[x.name], foreign) for x in session.get_inputs()}
        return list(
            session.run_with_ort_values(wanted, held) if foreign else session.run(wanted, held)
        )
    except Exception as error:  # its classes derive from Exception alone
        raise RunError(
            "ONNX Runtime failed in the model, or in a part of it",
            where=where,
            by=" ".join(str(error).split())[-300:],
            hint="run the unplaced model by ONNX Runtime to see if that works; with --batch, "
            "export it again if a reshape in it names a batch",
        ) from error


def _held(value: Any, always: bool) -> Any:
    """The array as an ``OrtValue`` where it has to be one."""
    if not isinstance(value, np.ndarray) or not (always or value.dtype.isbuiltin == OF_PACKAGE):
        return value
    from onnx.helper import np_dtype_to_tensor_dtype

    kind = np_dtype_to_tensor_dtype(value.dtype)
    return load_onnxruntime().OrtValue.ortvalue_from_numpy_with_onnx_type(value, kind)


def as_array(value: Any) -> Array:
    """A value of `run_session` as an array, of a type of ``ml_dtypes`` where NumPy has none."""
    if isinstance(value, np.ndarray):
        return value
    from onnx import TensorProto, numpy_helper

    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    kind = value.element_type()
    proto = TensorProto(data_type=kind, dims=value.shape(), raw_data=data)
    return np.asarray(numpy_helper.to_array(proto))


def whole_model(file: ModelFile) -> bytes | str:
    """The unplaced model for `open_session`: its bytes, or its file where it is large."""
    size = sum(len(tensor.raw_data) for tensor in file.model.graph.initializer)
    return file.source if size > 1 << 30 else bytes(file.model.SerializeToString())


class OnnxSessions:
    """A placed ONNX model; see `PlacedFile`.

    `folder`: where the sub-models are written; a temporary one where ``None``.
    """

    def __init__(self, placement: FilePlacement, folder: Path | None = None) -> None:
        file, cluster = placement.file, placement.cluster
        self.file, self.cluster, self.emulate = file, cluster, placement.emulate
        self.parts = parts_of(file, placement.device, placement.order)
        self.notes: Sequence[str] = ()
        self._links = _Links(cluster) if placement.emulate else None
        self._threads = [threads_of(device) for device in cluster.devices]
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._scratch = None if folder is not None else Scratch()
        self.files: list[Path] = []
        target = folder if folder is not None else Path(self._scratch.name)  # type: ignore[union-attr]
        try:
            self._sessions = self._open(target)
        except BaseException:
            self.close()
            raise

    @property
    def engine(self) -> str:
        """The runtime, threads of each device in use, and the number of parts."""
        ort = load_onnxruntime()
        used = sorted({part.device for part in self.parts})
        names = ", ".join(
            f"{self.cluster.devices[d].name} {self._threads[d]} threads" for d in used
        )
        return f"onnxruntime {ort.__version__}: {len(self.parts)} sub-models; {names}"

    @property
    def emulated(self) -> str:
        """Speeds below 1 and links, where they are waited for."""
        if not self.emulate:
            return ""
        used = {part.device for part in self.parts}
        slow = [
            f"{d.name} at speed {d.speed:g}"
            for k, d in enumerate(self.cluster.devices)
            if k in used and d.speed < 1
        ]
        links = ["links"] if self.cluster.links and len(used) > 1 else []
        return ", ".join(slow + links)

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One step: outputs by name.

        Raises `RunError`: ONNX Runtime failed in a part.
        """
        step = _StepValues(self, inputs)
        waiting = [pool.submit(step.run, d) for d, pool in self._pools.items()]
        failed = [error for error in map(Future.exception, waiting) if error is not None]
        if failed:
            # The cause, not one of those that it left waiting.
            raise next((e for e in failed if not isinstance(e, _AbandonedError)), failed[0])
        return {name: as_array(step.values[name]) for name in self.file.outputs}

    def close(self) -> None:
        """End the threads and remove temporary files."""
        for pool in self._pools.values():
            pool.shutdown()
        self._pools, self._sessions = {}, []
        if self._scratch is not None:
            with suppress(OSError):
                self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self, folder: Path) -> list[Any]:
        """Write every part and open its session in the thread of its device."""
        cores = _own_cores(self._threads)
        opened = []
        for k, part in enumerate(self.parts):
            device = self.cluster.devices[part.device]
            path = folder / f"part{k:04d}-{_file_name(device.name)}.onnx"
            self.files.append(write_sub_model(sub_model(self.file, part), path))
            if part.device not in self._pools:
                self._pools[part.device] = ThreadPoolExecutor(
                    1, f"device-{device.name}", _pin, (cores[part.device],)
                )
            opened.append(
                self._pools[part.device].submit(
                    open_session,
                    str(path),
                    f"{self.file.source}: part {k} on {device.name}",
                    threads=self._threads[part.device],
                    kind=device.kind,
                )
            )
        return [future.result() for future in opened]


class _AbandonedError(RunError):
    """A part whose inputs do not come because another part failed."""


class _StepValues:
    """Values of one step, filled in by the threads of the devices."""

    def __init__(self, owner: OnnxSessions, inputs: Mapping[str, Array]) -> None:
        self.owner = owner
        self.values: dict[str, Any] = dict(inputs)
        self.made_by: dict[str, int] = {}
        self.arrival_s: dict[tuple[str, int], float] = {}
        self.done = [threading.Event() for _ in owner.parts]
        self.failed = False
        self.maker = {value: k for k, part in enumerate(owner.parts) for value in part.outputs}
        self.lock = threading.Lock()
        self.channel_free_s: dict[int, float] = {}

    def run(self, device: int) -> None:
        """All parts of one device in order."""
        for k, part in enumerate(self.owner.parts):
            if part.device == device:
                self._wait_for(part)
                try:
                    self._run_part(k, part)
                except Exception:
                    self.failed = True
                    # All of them: whoever waits for what will not be made would wait for ever.
                    for event in self.done:
                        event.set()
                    raise

    def _wait_for(self, part: OnnxPart) -> None:
        latest = 0.0
        for value in part.inputs:
            maker = self.maker.get(value)
            if maker is None:
                continue
            self.done[maker].wait()
            # An event is set by a part that is done, or by one that failed: `failed` was set
            # before.
            if self.failed:
                raise _AbandonedError("another part failed", where=self.owner.file.source)
            latest = max(latest, self.arrival_s.get((value, part.device), 0.0))
        _sleep_until(latest)

    def _run_part(self, k: int, part: OnnxPart) -> None:
        began = time.perf_counter()
        session = self.owner._sessions[k]
        where = f"{self.owner.file.source}: {part.nodes[0]!r} to {part.nodes[-1]!r}"
        made = run_session(session, part.outputs, self.values, where)
        speed = self.owner.cluster.devices[part.device].speed
        if self.owner.emulate and speed < 1:
            _sleep_until(began + (time.perf_counter() - began) / speed)
        self.values.update(zip(part.outputs, made, strict=True))
        if self.owner._links is not None:
            self._send(part)
        # Last: who wakes up finds the values and their arrival.
        self.done[k].set()

    def _send(self, part: OnnxPart) -> None:
        """When each value that others read arrives there, first come, first served."""
        links = self.owner._links
        assert links is not None
        for value in part.outputs:
            for target in self._targets(value, part.device):
                with self.lock:
                    way = links.channel[part.device, target]
                    start = max(time.perf_counter(), self.channel_free_s.get(way, 0.0))
                    size = as_array(self.values[value]).nbytes
                    end = start + links.seconds(part.device, target, size)
                    self.channel_free_s[way] = end
                    self.arrival_s[value, target] = end

    def _targets(self, value: str, device: int) -> list[int]:
        found = {p.device for p in self.owner.parts if value in p.inputs}
        return sorted(found - {device})


class _Links:
    """What the links of a cluster take; those that it does not name take nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.latency_s, self.per_byte, self.channel, _ = cluster.link_arrays()
        given = {(link.source, link.target) for link in (*cluster.links, *cluster.routed_links())}
        names = cluster.device_names
        self.free = np.array([[(a, b) not in given for b in names] for a in names])

    def seconds(self, source: int, target: int, size: int) -> float:
        if self.free[source, target]:
            return 0.0
        return float(self.latency_s[source, target] + size * self.per_byte[source, target])


def _own_cores(threads: Sequence[int]) -> list[set[int]]:
    """Cores of each device; empty sets where there are too few for all of them."""
    if not hasattr(os, "sched_getaffinity"):
        return [set() for _ in threads]
    here = sorted(os.sched_getaffinity(0))
    if sum(threads) > len(here):
        return [set() for _ in threads]
    ends = np.cumsum([0, *threads]).tolist()
    return [set(here[a:b]) for a, b in pairwise(ends)]


def _pin(cores: set[int]) -> None:
    """Keep this thread, and the pools of sessions that it opens, on these cores."""
    if cores:
        os.sched_setaffinity(0, cores)


def _sleep_until(moment_s: float) -> None:
    left = moment_s - time.perf_counter()
    if left > 0:
        time.sleep(left)


def _file_name(device: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in device)


KERNEL = "_kernel_time"


def operator_seconds(file: ModelFile, threads: int) -> FloatArray:
    """Shape (operators,): seconds of each on so many threads of this machine.

    The profiler times operators as they are written. ONNX Runtime fuses many of them, so all are
    scaled by one factor that makes their sum the time of the optimised model.

    Raises `UnsupportedError`: ONNX Runtime does not take the model.
    """
    inputs = dict(file.random_inputs())
    with Scratch() as folder:
        prefix = str(Path(folder) / "profile")
        session = open_session(
            whole_model(file), file.source, threads=threads, optimise=False, profile=prefix
        )
        run_seconds(lambda: run_session(session, file.outputs, inputs, file.source))
        times = _by_node(Path(session.end_profiling()))
    alike: dict[str, list[float]] = {}  # one that was disturbed is corrected by those like it
    for op in file.graph.operators:
        alike.setdefault(op.signature, []).extend(times.get(op.name, [])[WARM_UP:])
    alone = np.array([median(alike[op.signature] or [0.0]) for op in file.graph.operators])
    if not alone.any():
        raise RunError(
            "ONNX Runtime's profile names none of its operators",
            where=file.source,
            hint="use --method analytic",
        )
    whole = whole_seconds(file, threads)
    return np.asarray(alone * (whole / alone.sum()), dtype=np.float64)


def whole_seconds(file: ModelFile, threads: int) -> float:
    """Median seconds of the unplaced, optimised model."""
    session = open_session(whole_model(file), file.source, threads=threads)
    inputs = dict(file.random_inputs())
    return median(run_seconds(lambda: run_session(session, file.outputs, inputs, file.source)))


def _by_node(path: Path) -> dict[str, list[float]]:
    """Kernel seconds by node, in the order of the runs."""
    found: dict[str, list[float]] = {}
    try:
        events = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # ONNX Runtime says nothing of a full disk
        raise RunError(
            "ONNX Runtime's profile is not complete",
            where=str(path),
            by=f"{path.stat().st_size} bytes",
            hint="free space there, or name another temporary folder in TMPDIR",
        ) from None
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(KERNEL):
            found.setdefault(event["name"].removesuffix(KERNEL), []).append(event["dur"] * 1e-6)
    return found


def handover_seconds(rounds: int = 200) -> float:
    """Median seconds until one thread sees what another has made."""
    there, back, found = threading.Event(), threading.Event(), []

    def answer() -> None:
        for _ in range(rounds):
            there.wait()
            there.clear()
            back.set()

    other = threading.Thread(target=answer)
    other.start()
    for _ in range(rounds):
        began = time.perf_counter()
        there.set()
        back.wait()
        back.clear()
        found.append((time.perf_counter() - began) / 2)
    other.join()
    return median(found)


EMBEDDED_BYTES = 1 << 30
"""Sub-models with more weights have them in a file beside: protocol buffers end at 2 GiB."""


@dataclass(frozen=True, slots=True)
class OnnxPart:
    """Operators that one device runs without waiting for another in between.

    Attributes
    ----------
    nodes
        In the order of the plan.
    inputs
        Values that come from elsewhere: inputs of the model, and what other parts make.
    outputs
        Values that other parts, on whatever device, or the model's user read; of the first part
        those that are constants, too.
    """

    device: int
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def parts_of(file: ModelFile, device: Mapping[str, int], order: Sequence[str]) -> list[OnnxPart]:
    """Parts in an order in which each finds its inputs made.

    A part ends before an operator that reads what another device has made since the part began,
    and after one that makes what another device reads: so parts wait for nothing but their inputs,
    and others do not wait for more than they read.
    """
    nodes = {node.name: node for node in file.model.graph.node}
    readers = _reader_devices(nodes.values(), file.constants, device)
    made_by: dict[str, int] = {}
    arrived: set[tuple[str, int]] = set()
    closed: list[tuple[int, list[str]]] = []
    current: dict[int, list[str]] = {}
    for name in order:
        d = device[name]
        foreign = {v for v in nodes[name].input if made_by.get(v, d) != d and (v, d) not in arrived}
        if foreign and current.get(d):
            closed.append((d, current.pop(d)))
        arrived |= {(value, d) for value in foreign}
        current.setdefault(d, []).append(name)
        made_by |= dict.fromkeys(filter(None, nodes[name].output), d)
        if any(readers.get(value, set()) - {d} for value in nodes[name].output):
            closed.append((d, current.pop(d)))
    closed += [(d, names) for d, names in current.items() if names]
    return _with_values(file, closed, nodes)


def _reader_devices(
    nodes: Iterable[Any], constants: frozenset[str], device: Mapping[str, int]
) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for node in nodes:
        if node.name not in constants:
            for value in node.input:
                found.setdefault(value, set()).add(device[node.name])
    return found


def _with_values(
    file: ModelFile, stretches: list[tuple[int, list[str]]], nodes: Mapping[str, Any]
) -> list[OnnxPart]:
    """What goes into and out of each stretch."""
    held = {tensor.name for tensor in file.model.graph.initializer}
    held |= {value for name in file.constants for value in nodes[name].output}
    part_of = {name: k for k, (_, names) in enumerate(stretches) for name in names}
    readers: dict[str, set[int]] = {}
    for name, k in part_of.items():
        for value in nodes[name].input:
            readers.setdefault(value, set()).add(k)
    wanted = set(file.outputs)
    parts = []
    for k, (d, names) in enumerate(stretches):
        made = [value for name in names for value in nodes[name].output if value]
        read = dict.fromkeys(value for name in names for value in nodes[name].input if value)
        outputs = [v for v in made if v in wanted or readers.get(v, set()) - {k}]
        outputs += [v for v in file.outputs if v in held and k == 0]
        inputs = [v for v in read if v not in held and v not in made]
        parts.append(OnnxPart(d, tuple(names), tuple(inputs), tuple(outputs)))
    return parts


def sub_model(file: ModelFile, part: OnnxPart) -> Any:
    """The part as a model of its own, with the weights and constants that it reads."""
    from onnx import helper

    graph = file.model.graph
    own = _with_constants(file, part)
    read = {value for node in own for value in node.input} | set(part.outputs)
    made = {value for node in own for value in node.output}
    types = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
    made_graph = helper.make_graph(
        own,
        f"{graph.name or 'model'}_part",
        [types[name] for name in part.inputs],
        [types[name] for name in part.outputs],
        initializer=[tensor for tensor in graph.initializer if tensor.name in read],
        value_info=[v for v in graph.value_info if v.name in made and v.name not in part.outputs],
    )
    return helper.make_model(
        made_graph,
        opset_imports=list(file.model.opset_import),
        ir_version=file.model.ir_version,
        producer_name="placewright",
    )


def _with_constants(file: ModelFile, part: OnnxPart) -> list[Any]:
    """Its nodes, and those that make the constants they read, in topological order."""
    graph = file.model.graph
    maker = {
        value: node for node in graph.node if node.name in file.constants for value in node.output
    }
    nodes = {node.name: node for node in graph.node}
    found: dict[str, Any] = {}

    def add(node: Any) -> None:
        if node.name in found:
            return
        for value in node.input:
            if value in maker:
                add(maker[value])
        found[node.name] = node

    for name in part.nodes:
        add(nodes[name])
    for value in part.outputs:
        if value in maker:
            add(maker[value])
    return list(found.values())


def write_sub_model(model: Any, path: Path) -> Path:
    """Write a sub-model; large weights go into ``<name>.weights`` beside it."""
    import onnx

    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save(
        model,
        str(path),
        save_as_external_data=size > EMBEDDED_BYTES,
        location=f"{path.stem}.weights" if size > EMBEDDED_BYTES else None,
    )
    return path


MANIFEST = "manifest.json"


def export_onnx(placement: FilePlacement, folder: Path) -> list[Path]:
    """Write one ``.onnx`` file per part, each loaded once, and ``manifest.json`` beside them.

    Running the parts of the manifest in order, each on the values it names, gives the model's
    outputs; parts on different devices may overlap where their inputs are there.
    """
    with OnnxSessions(placement, folder) as sessions:
        parts, files = sessions.parts, sessions.files
    devices = placement.cluster.devices
    manifest = {
        "schema_version": 1,
        "format": "onnx",
        "model": placement.file.graph.name,
        "inputs": [spec.name for spec in placement.file.inputs],
        "outputs": list(placement.file.outputs),
        "devices": {
            devices[d].name: {"kind": devices[d].kind, "threads": threads_of(devices[d])}
            for d in sorted({part.device for part in parts})
        },
        "parts": [
            {
                "file": file.name,
                "device": devices[part.device].name,
                "inputs": list(part.inputs),
                "outputs": list(part.outputs),
                "operators": list(part.nodes),
            }
            for part, file in zip(parts, files, strict=True)
        ],
    }
    path = write_file(folder / MANIFEST, json.dumps(manifest, indent=1))
    return [path, *files]


def run_exported(manifest: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of what `export_onnx` wrote: its parts one after another in ONNX Runtime."""
    data: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    values: dict[str, Any] = dict(inputs)
    for part in data["parts"]:
        session = open_session(str(manifest.parent / part["file"]), part["file"])
        missing = [name for name in part["inputs"] if name not in values]
        if missing:
            raise InputError(
                "a part comes before those that make its inputs",
                where=f"{manifest}: {part['file']}",
                by=", ".join(missing),
                hint="export the plan again",
            )
        made = run_session(session, part["outputs"], values, f"{manifest}: {part['file']}")
        values |= dict(zip(part["outputs"], made, strict=True))
    return {name: as_array(values[name]) for name in data["outputs"]}
