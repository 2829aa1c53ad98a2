"""Processes on this machine that never outlive the process that started them.

They come from a fork server that has torch loaded, so that each starts in a few hundredths of a
second. How a process ends is seen by a handle of its own (a pidfd): neither a fork server that was
killed nor one that was stopped hides it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Pipe, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from placewright.errors import WorkerError
from placewright.runtime import limits
from placewright.runtime.connections.channel import Channel
from placewright.runtime.engines import fork_server
from placewright.runtime.worker import worker_main
from placewright.runtime.worker_spec import WorkerSpec

PRELOADED = ("torch", "placewright.runtime.worker")

TRIES = 3
"""Fork servers that are tried one after another."""

UNKNOWN = 255
"""Exit code of a process whose fork server has not told, being killed or stopped itself."""

_TOLD_S = 0.5
"""Between the end of a process and what its fork server says of it."""


class ChildProcess:
    """Started where it is made; ends with this process, whatever it does.

    Parameters
    ----------
    target
        Called with `arguments` and one end of a lifeline: when that is closed the process has to
        end (`placewright.runtime.worker.end_with_parent`).
    preloaded
        Modules that the fork server loads, if this is its first process.

    Raises
    ------
    OSError, EOFError
        The fork server was killed while it started this process, or did not do it in time; another
        attempt gets another fork server.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: Sequence[Any],
        name: str,
        preloaded: Sequence[str] = PRELOADED,
    ) -> None:
        self._lifeline, theirs = Pipe()
        self.process: BaseProcess = fork_server.context(preloaded).Process(
            target=target, args=(*arguments, theirs), name=name, daemon=True
        )
        try:
            with main_hidden():
                fork_server.start(self.process)
        except BaseException:
            self._lifeline.close()
            raise
        finally:
            theirs.close()
        self._handle = _handle_of(self.process.pid or 0)

    @property
    def sentinel(self) -> int:
        """Ready when the process has ended."""
        return self.process.sentinel if self._handle is None else self._handle

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP, Ctrl-Z)."""
        return fork_server.is_stopped(self.process.pid or 0)

    def ended(self, patience_s: float = 0.0) -> bool:
        """Whether it has, waiting for it a little."""
        return bool(wait([self.sentinel], timeout=patience_s))

    def exit_code(self, patience_s: float = 0.0) -> int | None:
        """How it ended, waiting for it a little; ``None`` while it lives."""
        if not self.ended(patience_s):
            return None
        self.process.join(timeout=_TOLD_S)
        return UNKNOWN if self.process.exitcode is None else self.process.exitcode

    def cut(self) -> None:
        """Tell it to end at once, whatever it does."""
        self._lifeline.close()

    def end(self, patience_s: float = 0.5) -> None:
        """Make sure that it is gone."""
        self.cut()
        if not self.ended(patience_s):
            self.kill()
            self.ended(limits.END_S)
        self.process.join(timeout=_TOLD_S)

    def kill(self) -> None:
        """End it without a word."""
        with suppress(ProcessLookupError):
            if self._handle is None:
                self.process.kill()
            else:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def __del__(self) -> None:
        handle: int | None = getattr(self, "_handle", None)
        if handle is not None:
            os.close(handle)


class WorkerProcess(ChildProcess):
    """The process of one worker.

    Parameters
    ----------
    orders
        The worker's end of the connection that its orders come through; closed here.
    """

    def __init__(self, spec: WorkerSpec, orders: Channel) -> None:
        try:
            super().__init__(worker_main, (spec, orders), f"placewright-{spec.device_name}")
        finally:
            orders.close()


def started(make: Callable[[], ChildProcess], who: str) -> ChildProcess:
    """What `make` makes, tried again where the fork server was lost over it.

    Raises
    ------
    WorkerError
        It was lost every time.
    """
    for _ in range(TRIES):
        try:
            return make()
        except (OSError, EOFError) as error:
            last = error
    raise WorkerError(
        "the worker process cannot be started",
        where=who,
        by=f"tried {TRIES} times; {type(last).__name__}: {last}".rstrip(": "),
        hint="is the machine out of memory or of processes? PLACEWRIGHT_PATIENCE=4 waits longer",
    )


def _handle_of(pid: int) -> int | None:
    """``None`` where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


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
