"""One worker process on this machine, which never outlives the process that started it.

It comes from a forkserver that has torch loaded, so that it starts in a few hundredths of a
second.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import ModuleType

from placewright.execute.connections.channel import Channel
from placewright.execute.worker import worker_main
from placewright.execute.worker_spec import WorkerSpec


class WorkerProcess:
    """Started where it is made.

    Parameters
    ----------
    orders
        The worker's end of the connection that its orders come through; closed here.
    """

    def __init__(self, spec: WorkerSpec, orders: Channel) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read once, when torch is loaded
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "placewright.execute.worker"])
        self._lifeline, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=worker_main,
            args=(spec, orders, theirs),
            name=f"placewright-{spec.device_name}",
            daemon=True,
        )
        with main_hidden():
            self.process.start()
        orders.close()
        theirs.close()

    @property
    def sentinel(self) -> int:
        """Ready when the process has ended."""
        return self.process.sentinel

    def exit_code(self, patience_s: float = 0.0) -> int | None:
        """How it ended, waiting for it a little; ``None`` while it lives."""
        if patience_s > 0:
            self.process.join(timeout=patience_s)
        return self.process.exitcode

    def cut(self) -> None:
        """Tell it to end at once, whatever it does."""
        self._lifeline.close()

    def end(self, patience_s: float = 0.5) -> None:
        """Make sure that it is gone."""
        self.cut()
        self.process.join(timeout=patience_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(timeout=5.0)


@contextmanager
def main_hidden() -> Iterator[None]:
    """Keep a starting worker from executing the caller's script again.

    Workers need nothing of it, and a script of three lines has no ``__main__`` guard.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
