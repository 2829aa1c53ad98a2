"""TensorFlowModel: a step that TensorFlow executes, its graph, and the process that has it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import tempfile
import weakref
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from placewright import errors
from placewright.capturing.tensorflow.node_graph import node_graph
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import (
    InputError,
    MissingDependencyError,
    PlacewrightError,
    UnsupportedError,
    WorkerError,
)
from placewright.graph.graph import Graph
from placewright.interpreter import python_command, python_environment
from placewright.io.boundary import check_regular, unreadable
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
