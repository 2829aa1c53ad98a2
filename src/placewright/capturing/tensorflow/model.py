"""TensorFlowModel: a step that TensorFlow executes, its graph, and the process that has it.

FLOPs follow from an operator's kind, shapes and attributes (`placewright.capturing.flops`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from placewright import errors
from placewright.capturing.flops import Shape, Work, einsum, work_of_kind
from placewright.capturing.tensorflow.step_graph import (
    CONSTANTS,
    HANDLES,
    INPUTS,
    PASSIVE,
    VARIABLES,
    node_of,
)
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import (
    InputError,
    MissingDependencyError,
    PlacewrightError,
    UnsupportedError,
    WorkerError,
)
from placewright.graph.graph import DTYPES, ORDER_ONLY, Graph, Operator, Tensor, TensorSpec
from placewright.interpreter import python_command, python_environment
from placewright.io.boundary import check_regular, unreadable
from placewright.io.scratch import private_temporary_files
from placewright.io.stored import check_unpacked
from placewright.numerics.arrays import BoolArray

SUFFIXES = (".pb", ".keras", ".h5")
SCHEME = "tensorflow:"
KERNEL_OF = {"cpu": "CPU", "gpu": "GPU"}


@dataclass(frozen=True, slots=True, eq=False)
class TensorFlowModel:
    """A step of a TensorFlow model.

    `kernels`: by operator, the kinds of device that TensorFlow has a kernel on.
    `lr`: learning rate of a training step, 0 where it is not known.
    """

    source: str
    graph: Graph
    process: TensorFlowProcess
    kernels: Mapping[str, frozenset[str]]
    feeds: tuple[str, ...]
    outputs: tuple[str, ...]
    lr: float = 0.0

    @property
    def runtime(self) -> str:
        """TensorFlow and its version."""
        return f"TensorFlow {self.process.version}"

    def supported(self, cluster: Cluster) -> BoolArray:
        """Shape (operators, devices): whether a device of that kind has a kernel.

        A build of TensorFlow without GPU support knows no kernel for GPUs; then those that have
        one for CPUs are taken to have one.

        Raises `UnsupportedError`: no device of the cluster has a kernel for an operator; names it.
        """
        gpu_build = bool(self.process.about["gpu_build"])
        kinds = [_kernel(device, gpu_build) for device in cluster.devices]
        found = np.array(
            [[kind in self.kernels[op.name] for kind in kinds] for op in self.graph.operators]
        )
        for operator, row in zip(self.graph.operators, found, strict=True):
            if not row.any():
                raise UnsupportedError(
                    f"no device has a kernel for {operator.kind.removeprefix('tensorflow.')}",
                    where=f"{self.graph.name}: operator {operator.name!r}",
                    by=f"kernels on {', '.join(sorted(self.kernels[operator.name])) or 'none'}, "
                    f"devices {', '.join(sorted({d.kind for d in cluster.devices}))}",
                    hint="plan on a cluster with such a device, or export the model without it",
                )
        return found

    def devices(self, cluster: Cluster) -> list[str]:
        """TensorFlow's names of a cluster's devices: CPUs are logical ones of this process.

        Raises `InputError`: more GPUs than there are, or a device of another kind.
        """
        counts = {"cpu": 0, "gpu": 0}
        names = []
        for device in cluster.devices:
            if device.kind not in counts:
                raise InputError(
                    f"TensorFlow has no device of kind {device.kind!r}",
                    where=f"{cluster.name}: device {device.name!r}",
                    hint="plan for it, and run on cpu and gpu devices",
                )
            names.append(f"/device:{device.kind.upper()}:{counts[device.kind]}")
            counts[device.kind] += 1
        here = int(self.process.about["gpus"])
        if counts["gpu"] > here:
            raise InputError(
                "TensorFlow sees fewer GPUs than the cluster has",
                where=cluster.name,
                by=f"{here} of {counts['gpu']}",
                hint="run on a cluster of CPUs, or where the GPUs and TensorFlow for them are",
            )
        return names

    def placement(self, cluster: Cluster, placement: Sequence[int]) -> dict[str, str]:
        """TensorFlow's device of every operator."""
        devices = self.devices(cluster)
        return {op.name: devices[k] for op, k in zip(self.graph.operators, placement, strict=True)}

    def write(self, cluster: Cluster, placement: Sequence[int], path: str | Path) -> list[Any]:
        """Write the step with the device of every node, load it again and run it.

        `path`: a GraphDef where it ends in ``.pb``, else a folder for a SavedModel.

        Returns
        -------
        By output its difference from the unplaced graph: step, role, tensor, largest absolute
        difference, largest magnitude.
        """
        path = Path(path)
        if path.exists() and not path.suffix:
            raise InputError("there is something already", where=str(path), hint="name a new one")
        devices = self.placement(cluster, placement)
        found = self.process.order(
            "write", placement=devices, path=str(path.absolute()), cpus=cpus_of(cluster)
        )
        return list(found)


def cpus_of(cluster: Cluster) -> int:
    """Logical CPUs that a cluster needs, at least one."""
    return max(1, sum(device.kind == "cpu" for device in cluster.devices))


def _kernel(device: Device, gpu_build: bool) -> str:
    kind = KERNEL_OF.get(device.kind, "CPU")
    return kind if gpu_build else "CPU"


def is_tensorflow(source: str) -> bool:
    """Whether a source is a model for TensorFlow: by its suffix, its scheme or its folder."""
    if source.startswith(SCHEME):
        return True
    path = Path(source.partition("?")[0])
    # Not `Path.is_file`, which raises for a name that is too long.
    return path.suffix in SUFFIXES or os.path.isfile(path / "saved_model.pb")


def capture_tensorflow(
    source: str,
    *,
    batch: int | None = None,
    training: bool = False,
    process: TensorFlowProcess | None = None,
) -> TensorFlowModel:
    """Capture a step of a TensorFlow model.

    Raises `UnsupportedError`: control flow, dynamic shapes, a SavedModel without a signature,
    unknown operators.
    Raises `InputError`: a file that is missing or damaged.
    Raises `MissingDependencyError`: TensorFlow is not installed.

    Parameters
    ----------
    source
        ``graph.pb`` (a GraphDef; ``graph.pb?fetches=loss,train`` names its outputs), the folder of
        a SavedModel (``folder?signature=serving_default``), ``model.keras``, or
        ``tensorflow:package.module:factory``, a function that returns ``(model, inputs)`` or
        ``(model, inputs, loss_fn, targets)``; the model is a Keras model, or a ``tf.function``.
    batch
        Takes the place of an open first dimension of inputs; a factory gets it as a keyword.
    training
        The step with gradients and the optimizer, of a Keras model.
    process
        That has imported TensorFlow; a new one by default.
    """
    order = _order(source, batch, training)
    process = process or TensorFlowProcess()
    found = process.order("load", source=order)
    graph = node_graph(found["name"], found["nodes"])
    kernels = {node["name"]: frozenset(node["kernels"]) for node in found["nodes"]}
    outputs = tuple(found["fetches"])
    feeds = tuple(found["feeds"])
    return TensorFlowModel(source, graph, process, kernels, feeds, outputs, found["lr"])


def _check_files(path: Path) -> None:
    """Raise unless all files of a model are regular ones, of a size that can be read.

    TensorFlow opens them by their names, and would wait for the writer of a pipe for ever.
    """
    if not path.exists():
        raise InputError("no such file", where=str(path), hint="give the path of a model")
    files = [path]
    if path.is_dir():
        files = [Path(top) / name for top, _, names in os.walk(path) for name in names]
    try:
        for file in files:
            check_regular(file.stat(), file)
        if path.suffix == ".keras" and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                unpacked = sum(entry.file_size for entry in packed.infolist())
            check_unpacked(str(path), path.stat().st_size, unpacked)
    except OSError as error:
        raise unreadable(error.filename or path, error) from None
    except (zipfile.BadZipFile, ValueError) as error:
        raise InputError(
            "is no Keras file, or a damaged one", where=str(path), by=str(error)
        ) from None


def _order(source: str, batch: int | None, training: bool) -> dict[str, Any]:
    """The order for the process; options that the source cannot have are refused."""
    order: dict[str, Any] = {"batch": batch, "training": training}
    if source.startswith(SCHEME):
        return order | {"factory": source.removeprefix(SCHEME)}
    path, _, query = source.partition("?")
    key, _, value = query.partition("=")
    if query and (key not in ("fetches", "signature") or not value):
        raise InputError(
            f"unknown option {query!r}",
            where=source,
            hint="graph.pb?fetches=NAME,NAME or FOLDER?signature=NAME",
        )
    if training and Path(path).suffix not in (".keras", ".h5"):
        raise InputError(
            "--training is for Keras models",
            where=source,
            hint="a GraphDef has its whole step already; leave --training out",
        )
    _check_files(Path(path))
    options = {key: value.split(",") if key == "fetches" else value} if query else {}
    return order | {"path": path} | options


LAST_LINES = 5


class TensorFlowProcess:
    """A process of its own for TensorFlow.

    TensorFlow takes seconds to import, fixes its logical devices once per process, and shares
    thread pools and protocol buffers with whatever else is loaded; so it is never imported beside
    PyTorch and the compiled kernels of planners.

    Raises `MissingDependencyError`: TensorFlow is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("tensorflow") is None:
            raise MissingDependencyError(
                "tensorflow", extra="tensorflow", purpose="a TensorFlow model"
            )
        self.start(["-m", "placewright.capturing.tensorflow.worker"])
        self.about: dict[str, Any] = self.order("hello")

    def start(self, arguments: list[str]) -> None:
        """Start Python with these arguments, and this process's module path."""
        self._log = tempfile.TemporaryFile(  # noqa: SIM115  # open as long as the process is
            mode="w+", encoding="utf-8", errors="replace"
        )
        # AutoGraph writes modules into the temporary folder and imports them: what another user
        # has put into a `__pycache__` there would be executed.
        with private_temporary_files():
            self._process = subprocess.Popen(
                python_command(*arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                encoding="utf-8",
                env=python_environment(),
                start_new_session=True,  # Ctrl-C is for the process that gives orders
            )
        self._end = weakref.finalize(self, _end, self._process, self._log)

    @property
    def version(self) -> str:
        """TensorFlow's."""
        return str(self.about["version"])

    def order(self, order: str, **arguments: Any) -> Any:
        """Carry out one order there.

        Raises `PlacewrightError` as it was raised there; `WorkerError` where the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"order": order, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        except BaseException:  # Ctrl-C: the answer would be taken for that of the next order
            self.close()
            raise
        if not line:
            raise self._lost(order)
        found = json.loads(line)
        if "error" in found:
            kind = getattr(errors, found.pop("error"))
            error = kind.__new__(kind)
            PlacewrightError.__init__(error, found.pop("what"), **found)
            raise error
        return found["answer"]

    def close(self) -> None:
        """End the process."""
        self._end()

    def _lost(self, order: str) -> WorkerError:
        code = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return WorkerError(
            "the process that runs TensorFlow ended",
            where=f"order {order!r}",
            by=f"exit code {code}: {' | '.join(lines[-LAST_LINES:])[-600:]}",
            hint="it may have run out of memory; try a smaller --batch",
        )


def _end(process: subprocess.Popen[str], log: IO[str]) -> None:
    """End the process and its children, at once: it holds nothing that must be kept."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            # It leads a session of its own, so its number is the group's.
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    log.close()


SHARED_BYTES = 1 << 20
"""From this size on, a constant that several operators read keeps them on one device."""

_VIEWS = "Identity Reshape Squeeze ExpandDims StopGradient PreventGradient"
VIEWS = frozenset(_VIEWS.split())
"""Operators whose output shares memory with their first input."""

_UPDATES = ("Assign", "ResourceApply", "Apply")
"""What kinds of operators that change a variable begin with."""

Node = Mapping[str, Any]


def node_graph(name: str, nodes: Sequence[Node]) -> Graph:
    """The graph of a step.

    Every node that computes is an operator of the same name, its kind ``tensorflow.MatMul``.
    Constants, variables and inputs are none: they are resident with, or follow, the operators that
    read them. A control dependency is a tensor without bytes.

    `nodes`: as `placewright.capturing.tensorflow.step_graph.describe` gives them.
    """
    by_name = {node["name"]: node for node in nodes}
    if all(node["op"] in PASSIVE for node in nodes):
        raise UnsupportedError(
            "computes nothing: its outputs are constants or inputs",
            where=name,
            by=f"{len(nodes)} nodes",
            hint="name the outputs of the step: graph.pb?fetches=loss,train",
        )
    edges = _Edges(by_name)
    resident, groups = edges.resident_bytes(), edges.groups()
    phases = _phases(by_name)
    operators = tuple(
        _operator(node, edges, resident.get(node["name"], 0), groups, phases[node["name"]])
        for node in nodes
        if node["op"] not in PASSIVE
    )
    return Graph(name, operators, tuple(edges.tensors()))


@dataclass(slots=True)
class _Edges:
    """Who reads what."""

    nodes: Mapping[str, Node]
    readers: dict[str, list[str]] = field(init=False, default_factory=dict)
    root: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, node in self.nodes.items():
            for reference in dict.fromkeys(node["inputs"]):
                self.readers.setdefault(_value(reference), []).append(name)

    def output(self, reference: str) -> tuple[str, list[int]]:
        """Dtype and shape of the value of a data edge."""
        producer, _, index = reference.partition(":")
        dtype, shape = self.nodes[producer]["outputs"][int(index or 0)]
        return dtype, shape

    def given(self, node: Node) -> list[tuple[str, list[int]]]:
        """Dtypes and shapes of a node's inputs."""
        return [self.output(r) for r in node["inputs"] if not r.startswith("^")]

    def consumers(self, name: str) -> list[str]:
        """Operators that read any output of a node."""
        values = [f"{name}:{k}" for k in range(len(self.nodes[name]["outputs"]))]
        found = [r for value in values for r in self.readers.get(value, ())]
        return [r for r in dict.fromkeys(found) if self.nodes[r]["op"] not in PASSIVE]

    def resident_bytes(self) -> dict[str, int]:
        """Operator -> bytes of the variables and constants that live with it.

        A variable and a large constant count once, small constants for each operator.
        """
        held: dict[str, int] = {}
        for name, node in self.nodes.items():
            if node["op"] not in VARIABLES | CONSTANTS:
                continue
            once = node["op"] in VARIABLES or node["bytes"] >= SHARED_BYTES
            for reader in self.consumers(name)[: 1 if once else None]:
                held[reader] = held.get(reader, 0) + node["bytes"]
        return held

    def groups(self) -> dict[str, str]:
        """Operator -> the first operator of its colocation group; only groups of several.

        Together are: what names each other by ``_class loc:@``, what hands on a handle or a
        reference to a variable, and the readers of a large constant.
        """
        for name, node in self.nodes.items():
            for other in node["colocate"]:
                if other in self.nodes:
                    self._join(name, other)
            for reference in node["inputs"]:
                if not reference.startswith("^") and _is_handle(self.output(reference)[0]):
                    self._join(name, node_of(reference))
            if node["op"] in CONSTANTS and node["bytes"] >= SHARED_BYTES:
                for reader in self.consumers(name):
                    self._join(name, reader)
        members: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            if node["op"] not in PASSIVE:
                members.setdefault(self._find(name), []).append(name)
        return {name: group[0] for group in members.values() if len(group) > 1 for name in group}

    def _find(self, name: str) -> str:
        while (above := self.root.get(name, name)) != name:
            self.root[name] = self.root.get(above, above)
            name = above
        return name

    def _join(self, a: str, b: str) -> None:
        self.root[self._find(a)] = self._find(b)

    def tensors(self) -> Iterable[Tensor]:
        """Values that flow between operators, and the order that control dependencies set."""
        for name, node in self.nodes.items():
            if node["op"] in PASSIVE:
                continue
            for k, (dtype, shape) in enumerate(node["outputs"]):
                readers = tuple(self.readers.get(f"{name}:{k}", ()))
                view = self._viewed(node) if k == 0 else ""
                yield Tensor(_tensor(name, k), name, _size(dtype, shape), readers, view)
            waiting = self._waiting(name)
            if waiting:
                yield Tensor(f"{ORDER_ONLY}{name}", name, 0, waiting)

    def _waiting(self, name: str) -> tuple[str, ...]:
        """Operators that a control dependency lets wait; through constants, their readers."""
        found: dict[str, None] = {}
        for reader in self.readers.get(f"^{name}", ()):
            passive = self.nodes[reader]["op"] in PASSIVE
            found |= dict.fromkeys(self.consumers(reader) if passive else [reader])
        return tuple(found)

    def _viewed(self, node: Node) -> str:
        """The tensor that the first output of a node shares memory with."""
        if node["op"] not in VIEWS:
            return ""
        producer, _, index = node["inputs"][0].partition(":")
        passive = self.nodes[producer]["op"] in PASSIVE
        return "" if passive else _tensor(producer, int(index or 0))


def _value(reference: str) -> str:
    """One spelling of an edge: ``node:0``, or ``^node``."""
    return reference if reference.startswith("^") or ":" in reference else f"{reference}:0"


def _tensor(name: str, output: int) -> str:
    return name if output == 0 else f"{name}#{output}"


def _is_handle(dtype: str) -> bool:
    return dtype in HANDLES or dtype.endswith("_ref")


def _size(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor; handles and references are none."""
    if _is_handle(dtype) or dtype == "string":
        return 0
    width = 2 if dtype == "bfloat16" else _width(dtype)
    return prod(shape) * width


def _width(dtype: str) -> int:
    try:
        return int(np.dtype(dtype).itemsize)
    except TypeError:
        return 1


def _operator(
    node: Node, edges: _Edges, resident: int, groups: Mapping[str, str], phase: str
) -> Operator:
    given = edges.given(node)
    shapes = [shape for _, shape in given]
    made = [shape for _, shape in node["outputs"]]
    work = work_of_node(node["op"], shapes, made, node["attrs"])
    moved = sum(_size(*value) for value in (*given, *map(tuple, node["outputs"])))
    described = json.dumps([node["op"], given, node["outputs"], node["attrs"]], sort_keys=True)
    return Operator(
        name=node["name"],
        kind=f"tensorflow.{node['op']}",
        flops=work.flops,
        elementwise_flops=work.elementwise_flops,
        uncounted=work.uncounted,
        bytes_accessed=0.0 if node["op"] in VIEWS | {"NoOp"} else float(moved),
        resident_bytes=resident,
        phase=phase,
        module=".".join(node["name"].split("/")[:-1]),
        signature=hashlib.sha256(described.encode()).hexdigest()[:16],
        colocation=groups.get(node["name"], ""),
        outputs=tuple(TensorSpec(tuple(shape), _dtype(dtype)) for dtype, shape in node["outputs"]),
    )


def _dtype(name: str) -> str:
    plain = name.removesuffix("_ref")
    return plain if plain in DTYPES else "uint8"


def _phases(nodes: Mapping[str, Node]) -> dict[str, str]:
    """Phase of every node: gradients by their scope, updates of variables and what only they need.

    Forward for all where nothing is updated.
    """
    read: dict[str, list[str]] = {}
    for name, node in nodes.items():
        for reference in node["inputs"]:
            read.setdefault(node_of(reference), []).append(name)
    found: dict[str, str] = {}
    for name in reversed(list(nodes)):  # readers first
        after, op = {found[reader] for reader in read.get(name, ())}, nodes[name]["op"]
        if _is_gradient(name):
            found[name] = "backward"
        elif op.startswith(_UPDATES) or (after == {"optimizer"} and op not in INPUTS):
            found[name] = "optimizer"
        else:
            found[name] = "forward"
    return found


def _is_gradient(name: str) -> bool:
    return any(part.startswith(("gradient_tape", "gradients")) for part in name.split("/"))


CONVOLUTIONS = {
    "Conv1D": 1,
    "Conv2D": 1,
    "Conv3D": 1,
    "Conv2DBackpropInput": 1,
    "Conv2DBackpropFilter": 1,
    "Conv3DBackpropInputV2": 1,
    "Conv3DBackpropFilterV2": 1,
    "DepthwiseConv2dNative": 2,
    "DepthwiseConv2dNativeBackpropInput": 2,
    "DepthwiseConv2dNativeBackpropFilter": 2,
}
"""Convolutions; 2 where each channel has filters of its own."""


def work_of_node(
    op: str, given: Sequence[Shape], made: Sequence[Shape], attributes: Mapping[str, Any]
) -> Work:
    """FLOPs of an operator; `given`, `made`: shapes of inputs and outputs."""
    product: Callable[[], float] | None = None
    if op in ("MatMul", "SparseMatMul") or op.startswith("BatchMatMul"):
        turned = bool(attributes.get("transpose_a") or attributes.get("adj_x"))
        product = partial(_matrices, given, made, turned)
    elif op == "Einsum":
        product = partial(einsum, str(attributes.get("equation", "")), given)
    elif op in CONVOLUTIONS:
        product = partial(_convolution, op, given, made)
    window = prod(attributes.get("ksize") or (1,))
    name = op
    if op.startswith("FusedBatchNorm") and not attributes.get("is_training", True):
        name = "BatchNormInference"
    return work_of_kind(name, given, made, product=product, window=window)


def _matrices(given: Sequence[Shape], made: Sequence[Shape], turned: bool) -> float:
    return 2.0 * prod(made[0]) * given[0][-2 if turned else -1]


def _convolution(op: str, given: Sequence[Shape], made: Sequence[Shape]) -> float:
    """Each element of the output adds over a window and, unless depthwise, over channels.

    Gradients do the products of the forward pass again: the output is then the last input, the
    filter the second input or what is made.
    """
    forward = "Backprop" not in op
    output = made[0] if forward else given[2]
    weights = made[0] if op.endswith(("Filter", "FilterV2")) else given[1]
    inner = prod(weights[:-2]) * (1 if CONVOLUTIONS[op] == 2 else weights[-2])
    return 2.0 * prod(output) * inner
