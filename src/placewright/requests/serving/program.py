"""The worker program of a server: it holds variants in memory and answers batches."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from placewright.requests.serving.models import ServedModel, open_model
from placewright.requests.serving.priority import compute_behind, computing
from placewright.requests.serving.tensors import Strings, received, sendable
from placewright.runtime.program import Worker, WorkerProgram, order

VARIANT_SERVER = "placewright.requests.serving.program:VariantServer"
TORCH_SERVER = "placewright.requests.serving.program:TorchServer"


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
