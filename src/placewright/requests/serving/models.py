"""The worker program of a server, which holds variants in memory and answers batches; its models.

    onnx         an ONNX file in ONNX Runtime
    torchscript  what ``torch.jit.save`` wrote
    exported     what ``torch.export.save`` wrote
    factory      ``package.module:factory``, which returns a function of arrays by input name

All but ONNX files run code of their own where they are loaded, so the operator names them when the
server is started (``--models``); they never come over HTTP.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from placewright.errors import InputError, MissingDependencyError
from placewright.requests.serving.priority import compute_behind, computing
from placewright.requests.serving.tensors import Array, Strings, received, sendable
from placewright.runtime.model_files.onnx_sessions import load_onnxruntime
from placewright.runtime.program import Worker, WorkerProgram, order

SERVE = "serve"
"""The extra that has what this package needs."""

SUFFIXES = {".pt": "torchscript", ".ts": "torchscript", ".pt2": "exported"}
"""Kinds of files by suffix; others are ONNX."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on its way to servers.

    `kind`: see above. `data`: the file; of a factory its name and the folder to import it from.
    """

    kind: str
    data: bytes

    def __len__(self) -> int:
        return len(self.data)


class LoadedVariant(Protocol):
    """A model in memory, called as ONNX Runtime's sessions are."""

    def run(self, outputs: None, inputs: dict[str, Array]) -> Sequence[Array]:
        """Outputs in order for inputs by name."""
        ...


def open_model(model: ServedModel, where: str, threads: int = 1) -> LoadedVariant:
    """Load a model.

    Raises `InputError`: it is none.
    Raises `MissingDependencyError`: what it needs is not installed.
    """
    if model.kind == "onnx":
        found: LoadedVariant = open_session(model.data, where, threads)
        return found
    if model.kind == "factory":
        return _Function(_made_by_factory(model.data, where))
    return _Torch(_torch_program(model, where, threads))


def open_session(model: bytes, where: str, threads: int = 1) -> Any:
    """An ONNX Runtime session on the CPU.

    Threads do not spin while they wait: several workers share the cores.
    """
    try:
        ort = load_onnxruntime()
    except ImportError:
        raise MissingDependencyError(
            "onnxruntime", extra=SERVE, purpose="serving requests"
        ) from None
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Its other format, which bytes may have too, is not looked into for other files.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common base
        raise InputError(
            "this is no ONNX model that runs here",
            where=where,
            by=f"{error!s:.300}",
            hint="ONNX Runtime says so for its CPU, which has few operators for BFLOAT16: convert "
            "those to FP32 or FP16, or export the model again",
        ) from None


def factory_model(name: str) -> ServedModel:
    """A factory, to be imported as from the working folder."""
    return ServedModel("factory", json.dumps([os.getcwd(), name]).encode())


def demand_allowed(variant: str, named: str, allowed: Collection[str]) -> None:
    """Raise `InputError` where the operator has not named what runs code of its own."""
    if named not in allowed:
        raise InputError(
            "runs code of its own, and is not among the models that may",
            where=f"variants.{variant}",
            by=f"{named!r:.200}",
            hint=f"where you trust it: placewright requests serve --models {named}",
        )


@dataclass(frozen=True, slots=True)
class _Function:
    """What a factory has returned."""

    function: Callable[[dict[str, Array]], Any]

    def run(self, outputs: None, inputs: dict[str, Array]) -> Sequence[Array]:
        """See `LoadedVariant`."""
        return [_array(value) for value in _values(self.function(inputs))]


@dataclass(frozen=True, slots=True)
class _Torch:
    """A PyTorch program, which takes inputs in order."""

    module: Any

    def run(self, outputs: None, inputs: dict[str, Array]) -> Sequence[Array]:
        """See `LoadedVariant`."""
        import torch

        # Not `from_numpy`, which warns of arrays that are read only.
        given = [torch.tensor(value) for value in inputs.values()]
        with torch.inference_mode():
            return [_array(value) for value in _values(self.module(*given))]


def _values(made: Any) -> Sequence[Any]:
    """Outputs in order: of a mapping, a sequence, or the only one."""
    if isinstance(made, Mapping):
        return list(made.values())
    return made if isinstance(made, tuple | list) else [made]


def _array(value: Any) -> Array:
    found = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    return found.astype(object) if found.dtype.kind in "US" else found


def _torch_program(model: ServedModel, where: str, threads: int) -> Any:
    import torch

    torch.set_num_threads(threads)
    try:
        if model.kind == "torchscript":
            return torch.jit.load(io.BytesIO(model.data), map_location="cpu").eval()  # type: ignore[no-untyped-call]
        return torch.export.load(io.BytesIO(model.data)).module()
    except Exception as error:  # its errors have no common base
        raise InputError(
            f"this is no {model.kind} model that runs here", where=where, by=f"{error!s:.300}"
        ) from None


def _made_by_factory(data: bytes, where: str) -> Callable[[dict[str, Array]], Any]:
    from placewright.interpreter import import_from

    folder, name = json.loads(data)
    module, _, path = name.partition(":")
    try:
        made = getattr(import_from(folder, module), path)()
    except Exception as error:  # whatever the user's code raises
        raise InputError(
            "the factory did not make a model",
            where=f"{where}: {name}",
            by=f"{type(error).__name__}: {error!s:.200}",
            hint="it takes no arguments and returns a function of arrays by input name",
        ) from None
    if not callable(made):
        raise InputError(
            "the factory returned no function",
            where=f"{where}: {name}",
            by=f"got a {type(made).__name__}",
            hint="return a function of arrays by input name",
        )
    function: Callable[[dict[str, Array]], Any] = made
    return function


def file_model(path: Path, data: bytes) -> ServedModel:
    """The model of a file, whose suffix says its kind."""
    return ServedModel(SUFFIXES.get(path.suffix, "onnx"), data)


VARIANT_SERVER = "placewright.requests.serving.models:VariantServer"
TORCH_SERVER = "placewright.requests.serving.models:TorchServer"


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """The answer to a batch.

    `outputs`: one array per output of the variant; empty where `error` says why there is none.
    `compute_s`: seconds in this process.
    """

    outputs: tuple[Any, ...]
    compute_s: float
    error: str = ""


class VariantServer(WorkerProgram):
    """One server. On engine ``local`` a slower one waits after it has computed."""

    messages = (Computed, Strings, ServedModel)
    noun = "server"
    uses_torch = False

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        compute_behind()
        self._sessions: dict[str, Any] = {}

    @order("loading a variant")
    def load(self, key: str, model: ServedModel) -> None:
        """Hold a variant in memory from now on."""
        with computing():
            self._sessions[key] = open_model(model, key, self.worker.spec.threads)

    @order("removing a variant")
    def unload(self, key: str) -> None:
        """Free its memory."""
        self._sessions.pop(key, None)

    @order("computing a batch")
    def compute(self, key: str, inputs: dict[str, Any]) -> Computed:
        """Answer a batch; an input that the model refuses is no reason to end."""
        began_s, cpu_s = time.perf_counter(), self._cpu_s()
        try:
            with computing():
                given = {name: received(value) for name, value in inputs.items()}
                outputs = tuple(map(sendable, self._sessions[key].run(None, given)))
        except Exception as error:  # ONNX Runtime's errors have no common base
            return Computed((), time.perf_counter() - began_s, f"{type(error).__name__}: {error}")
        spent_s = time.perf_counter() - began_s
        if self.worker.spec.stretch > 1:
            # Time that others had the core is not multiplied: the server has a core of its own.
            whole_s = (self._cpu_s() - cpu_s) * self.worker.spec.stretch
            time.sleep(max(0.0, whole_s - spent_s))
        return Computed(outputs, time.perf_counter() - began_s)

    def _cpu_s(self) -> float:
        """Computed by this thread; with several threads, the clock."""
        return time.thread_time() if self.worker.spec.threads == 1 else time.perf_counter()


class TorchServer(VariantServer):
    """A server that has variants which are PyTorch programs: they find it loaded."""

    uses_torch = True


def program_for(models: Iterable[ServedModel]) -> str:
    """The program of a server of these variants."""
    torch = any(model.kind in ("torchscript", "exported") for model in models)
    return TORCH_SERVER if torch else VARIANT_SERVER
