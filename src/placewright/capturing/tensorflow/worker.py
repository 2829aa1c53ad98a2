"""Worker process that imports TensorFlow: one JSON order a line in, one JSON answer a line out.

It ends when its input ends, and within a second of the process that started it, amid an order too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from placewright.errors import PlacewrightError, WorkerError

if TYPE_CHECKING:
    from placewright.capturing.tensorflow.executing import Execution
    from placewright.capturing.tensorflow.step_graph import StepGraph

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}


class WorkerOrders:
    """The orders that the process takes, one method each."""

    step: StepGraph

    def __init__(self) -> None:
        self.executions: dict[str, Execution] = {}

    def hello(self) -> dict[str, Any]:
        """Import TensorFlow; its version and devices."""
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        return {
            "version": tf.__version__,
            "gpus": len(gpus),
            "gpu_build": bool(tf.test.is_built_with_cuda()),
        }

    def load(self, source: dict[str, Any]) -> dict[str, Any]:
        """Load a source: its nodes."""
        from placewright.capturing.tensorflow.executing import shapes_of
        from placewright.capturing.tensorflow.loading import load_step
        from placewright.capturing.tensorflow.step_graph import describe

        self.drop()
        self.step, graph, shown = load_step(source)
        return {
            "name": self.step.name,
            "nodes": describe(graph, self.step, shapes_of(self.step, shown)),
            "feeds": list(self.step.feeds),
            "fetches": list(self.step.fetches),
            "targets": list(self.step.targets),
            "variables": self.step.variables,
            "lr": self.step.lr,
        }

    def devices(self) -> dict[str, str]:
        """The device that the loaded graph names for each node."""
        return {name: node.device for name, node in self.step.nodes.items()}

    def profile(self, threads: int, repeats: int) -> dict[str, float]:
        """Seconds of every operator with so many threads, one operator at a time."""
        from placewright.capturing.tensorflow.executing import kernel_seconds

        return kernel_seconds(self.step, threads, repeats)

    def handover(self) -> float:
        """Seconds that a tensor takes from one logical CPU to another."""
        from placewright.capturing.tensorflow.executing import handover_seconds

        return handover_seconds()

    def run(self, key: str, placement: dict[str, str], cpus: int, steps: int) -> list[float]:
        """Seconds of steps of a placement; its session stays for the next order."""
        from placewright.capturing.tensorflow.executing import Execution

        if key not in self.executions:
            self.executions[key] = Execution(self.step, placement, cpus)
        return self.executions[key].run(steps)

    def drop(self) -> None:
        """End all sessions."""
        for run in self.executions.values():
            run.close()
        self.executions.clear()

    def check(self, placement: dict[str, str], cpus: int, steps: int) -> list[Any]:
        """Differences from the unplaced graph."""
        from placewright.capturing.tensorflow.executing import differences

        return differences(self.step, placement, cpus, steps)

    def write(self, placement: dict[str, str], path: str, cpus: int) -> list[Any]:
        """Write the placed step; how what was written differs from the unplaced graph."""
        from placewright.capturing.tensorflow.executing import write

        return write(self.step, placement, Path(path), cpus)


def answer(orders: WorkerOrders, line: str) -> dict[str, Any]:
    """Carry out one order; what it returned, or its error."""
    order = json.loads(line)
    name = order.pop("order")
    method: Callable[..., Any] = getattr(orders, name)
    try:
        return {"answer": method(**order)}
    except PlacewrightError as error:
        return _as_data(error)
    except Exception as error:
        traceback.print_exc()
        why = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        return _as_data(WorkerError("TensorFlow raised", where=f"order {name!r}", by=why))


def _as_data(error: PlacewrightError) -> dict[str, Any]:
    parts = {"what": error.what, "where": error.where, "by": error.by, "hint": error.hint}
    return {"error": type(error).__name__, **parts}


def serve(orders_in: TextIO, answers_out: TextIO) -> None:
    """Carry out orders until there are no more."""
    orders = WorkerOrders()
    for line in orders_in:
        answers_out.write(json.dumps(answer(orders, line)) + "\n")
        answers_out.flush()


def end_with(parent: int, poll_s: float = 1.0) -> None:
    """End this process when `parent` is no longer its parent."""
    while os.getppid() == parent:
        time.sleep(poll_s)
    os._exit(1)


def main() -> None:
    """Keep stdout for answers; what TensorFlow and the model print goes to stderr."""
    os.environ.update(QUIET)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    # Behind this, file descriptor 1 is stderr: what C++ prints cannot get between the answers.
    answers_out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers_out)


if __name__ == "__main__":
    main()
