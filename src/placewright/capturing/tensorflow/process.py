"""TensorFlowProcess: the process that imports TensorFlow, and the orders it is given."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import tempfile
import weakref
from typing import IO, Any

from placewright import errors
from placewright.errors import MissingDependencyError, PlacewrightError, WorkerError
from placewright.interpreter import python_command, python_environment

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
