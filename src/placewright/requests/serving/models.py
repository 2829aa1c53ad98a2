"""The worker program of a server, which holds variants in memory and answers batches; its models.

    onnx         an ONNX file in ONNX Runtime
    torchscript  what ``torch.jit.save`` wrote
    exported     what ``torch.export.save`` wrote
    factory      ``package.module:factory``, which returns a function of arrays by input name

All but ONNX files run code of their own where they are loaded, so the operator names them when the
server is started (``--models``); they never come over HTTP. What they print goes to stderr: stdout
is the server's.

*Settings of the process* that factories may change: each function has its own.

Variants share a process. What the code of one of them sets, where it is made or while it computes,
must not change the answers of another: the working folder, environment variables, how NumPy treats
errors, and PyTorch's default dtype, gradients and deterministic algorithms.

    make a      the process's own settings -> a is made    -> what it has set is kept for a
    compute b   b's settings               -> b computes   -> the process's own again
    compute a   a's settings               -> a computes   -> ...

Generators of random numbers are shared.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from placewright.errors import InputError, MissingDependencyError, PlacewrightError, text_of
from placewright.requests.serving.priority import compute_behind, computing
from placewright.requests.serving.tensors import (
    Array,
    Strings,
    received,
    sendable,
    served_array,
)
from placewright.runtime.model_files.onnx_sessions import load_onnxruntime
from placewright.runtime.program import Worker, WorkerProgram, order

SERVE = "serve"
"""The extra that has what this package needs."""

SUFFIXES = {".pt": "torchscript", ".ts": "torchscript", ".pt2": "exported"}
"""Kinds of files by suffix; others are ONNX."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on its way to servers.

    Attributes
    ----------
    kind
        See above.
    data
        The file; of a factory its name and the folder to import it from.
    outputs
        Names of the family's outputs in order, by which those of a mapping are taken.
    """

    kind: str
    data: bytes
    outputs: tuple[str, ...] = ()

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
        settings = OwnSettings()
        with settings.applied():
            return _Function(_made_by_factory(model.data, where), model.outputs, settings)
    program = _torch_program(model, where, threads)
    return _Torch(program, _arguments(program), model.outputs)


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
    outputs: tuple[str, ...]
    settings: OwnSettings

    def run(self, outputs: None, inputs: dict[str, Array]) -> Sequence[Array]:
        """See `LoadedVariant`."""
        with self.settings.applied():
            made = _values(self.function(inputs), self.outputs)
            return [served_array(value) for value in made]


@dataclass(frozen=True, slots=True)
class _Torch:
    """A PyTorch program."""

    module: Any
    arguments: Sequence[str]
    outputs: tuple[str, ...]

    def run(self, outputs: None, inputs: dict[str, Array]) -> Sequence[Array]:
        """See `LoadedVariant`."""
        import torch

        # Not `from_numpy`, which warns of arrays that are read only.
        given = {name: torch.tensor(value) for name, value in inputs.items()}
        ordered = [given[name] for name in in_order(list(given), self.arguments)]
        with torch.inference_mode():
            return [served_array(value) for value in _values(self.module(*ordered), self.outputs)]


def _arguments(module: Any) -> list[str]:
    """Names of what a PyTorch program takes, in order."""
    import torch

    forward = module.forward
    if isinstance(module, torch.jit.ScriptModule):
        return [each.name for each in forward.schema.arguments[1:]]
    return list(signature(forward).parameters)


def in_order(inputs: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Names of inputs in the order of a program's arguments.

    Inputs of other names than the arguments are taken in the order in which the family's file has
    them.

    Raises `InputError`: some have names of arguments that stand elsewhere.
    """
    first = list(arguments[: len(inputs)])
    if set(inputs) == set(first):
        return first
    strange = [n for k, n in enumerate(inputs) if n in arguments and arguments.index(n) != k]
    if strange:
        raise InputError(
            "the inputs of the family's file are in another order than the program's arguments",
            where=f"input {strange[0]!r}",
            by=f"inputs {', '.join(inputs)}; arguments {', '.join(arguments)}",
            hint="give all inputs the names of the arguments",
        )
    return list(inputs)


def _values(made: Any, names: Sequence[str]) -> Sequence[Any]:
    """Outputs in order: of a mapping by name, of a sequence, or the only one.

    Raises `InputError`: a mapping lacks one of them.
    """
    if isinstance(made, Mapping):
        missing = [name for name in names if name not in made]
        if missing:
            raise InputError(
                "the model returns a mapping without an output of the family's file",
                where=f"output {missing[0]!r}",
                by=f"it has {', '.join(map(str, made))}"[:200],
                hint="give outputs the names that the mapping has",
            )
        return [made[name] for name in names]
    return made if isinstance(made, tuple | list) else [made]


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
    except BaseException as error:  # whatever the user's code raises, `sys.exit` too
        raise InputError(
            "the factory did not make a model",
            where=f"{where}: {name}",
            by=reason(error)[:200],
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


def reason(error: BaseException) -> str:
    """What was raised, as text that can be sent, whatever the error's own text is."""
    if isinstance(error, PlacewrightError):
        return f"{error.brief}: {error.hint}"
    return f"{type(error).__name__}: {text_of(error)}".encode(errors="replace").decode()


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


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """Why a variant cannot be loaded, in the parts of an error."""

    what: str
    where: str
    by: str
    hint: str


class VariantServer(WorkerProgram):
    """One server. On engine ``local`` a slower one waits after it has computed."""

    messages = (Computed, NotLoaded, Strings, ServedModel)
    noun = "server"
    uses_torch = False

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        compute_behind()
        print_to_stderr()
        self._sessions: dict[str, Any] = {}

    @order("loading a variant")
    def load(self, key: str, model: ServedModel) -> NotLoaded | None:
        """Hold a variant in memory from now on, or answer why it cannot be."""
        try:
            with computing():
                self._sessions[key] = open_model(model, key, self.worker.spec.threads)
        except (InputError, MissingDependencyError) as error:
            return NotLoaded(error.what, error.where, error.by, error.hint)
        return None

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
        except BaseException as error:  # whatever a model raises, `sys.exit` too
            return Computed((), time.perf_counter() - began_s, reason(error))
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


_TORCH = ("float32", True, False)
"""PyTorch's settings, as `Settings` has them, before anybody has changed them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a process.

    `torch`: dtype by default, whether gradients are computed, whether algorithms are deterministic.
    """

    folder: str
    environment: dict[str, str]
    numpy_errors: dict[str, Any]
    torch: tuple[str, bool, bool]

    @classmethod
    def now(cls) -> Settings:
        """Those of this process, of its thread where they are a thread's."""
        return cls(os.getcwd(), dict(os.environ), dict(np.geterr()), _torch_settings())

    def replace(self, now: Settings) -> None:
        """Set what is different `now`."""
        if self.folder != now.folder:
            os.chdir(self.folder)
        if self.environment != now.environment:
            for name in now.environment.keys() - self.environment.keys():
                del os.environ[name]
            os.environ.update(self.environment)
        if self.numpy_errors != now.numpy_errors:
            np.seterr(**self.numpy_errors)
        if self.torch != now.torch:
            _set_torch(*self.torch)


def _torch_settings() -> tuple[str, bool, bool]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return _TORCH
    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    return dtype, torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()


def _set_torch(dtype: str, gradients: bool, deterministic: bool) -> None:
    torch: Any = sys.modules["torch"]
    torch.set_default_dtype(getattr(torch, dtype))
    torch.set_grad_enabled(gradients)
    torch.use_deterministic_algorithms(deterministic)


class OwnSettings:
    """What the code of one variant has set."""

    def __init__(self) -> None:
        self._kept: Settings | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Go on with what it has set, keep what it sets now, and put back what was there."""
        before = Settings.now()
        if self._kept is not None:
            self._kept.replace(before)
        try:
            yield
        finally:
            self._kept = after = Settings.now()
            before.replace(after)


def print_to_stderr() -> None:
    """Let what this process prints go to stderr: stdout is that of the server."""
    sys.stdout.flush()
    with suppress(OSError):  # closed
        os.dup2(sys.stderr.fileno(), 1)
    sys.stdout = sys.stderr
