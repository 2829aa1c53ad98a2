"""Processes on this machine that never outlive the process that started them.

They are forked from `multiprocessing`'s fork server, which has torch loaded where a program uses
it: each starts in a few hundredths of a second. This module adds to it: no traceback where Ctrl-C
arrives while the server or a worker starts; a limit where the server does not answer; a new server
where it was killed; its end where it was stopped. How a process ends is read from a pidfd, so that
neither a killed nor a stopped fork server hides it.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Pipe, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, TypeVar

from placewright.errors import WorkerError
from placewright.interpreter import safe_variables
from placewright.io.scratch import keep_multiprocessing_here, private_temporary_files
from placewright.runtime import limits
from placewright.runtime.connections import Channel
from placewright.runtime.host import children_of, is_stopped
from placewright.runtime.program import load_program, worker_main
from placewright.runtime.specs import WorkerSpec

TRIES = 3
"""Fork servers that are tried one after another."""

UNKNOWN = 255
"""Exit code of a process whose fork server has not reported it, being killed or stopped itself."""

TORCH = "torch"

_LOADED_BY = os.getpid()

_REPORTED_S = 0.5
"""Between the end of a process and its fork server's report of it."""

_ENDING_S = 0.2
"""Until another start is tried, and once more each time."""


Process = TypeVar("Process", bound="ChildProcess")


class ChildProcess:
    """Started where it is made; ends with this process, whatever it does.

    Raises `OSError`, `EOFError`: the fork server was killed while it started this process, or did
    not do it in time; another attempt gets another fork server.

    Parameters
    ----------
    target
        Called with `arguments` and one end of a lifeline: when that is closed the process has to
        end (`placewright.runtime.program.end_with_parent`).
    preloaded
        Modules that the fork server loads, if this is its first process.
    needed
        Those of them without which a fork server is replaced.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: Sequence[Any],
        name: str,
        preloaded: Sequence[str] = (),
        needed: Sequence[str] = (),
    ) -> None:
        # One way, so a pipe: of a socket that a thread waits for, the kernel sends no signal.
        theirs, self._lifeline = Pipe(duplex=False)
        self.process: BaseProcess = fork_server_context(preloaded, needed).Process(
            target=target, args=(*arguments, theirs), name=name, daemon=True
        )
        try:
            with main_hidden():
                start_in_fork_server(self.process)
        except BaseException:
            self._lifeline.close()
            raise
        finally:
            theirs.close()
        # A pidfd: it stays that process's when the number belongs to another one.
        self._handle = _handle_of(self.process.pid or 0)

    @property
    def sentinel(self) -> int:
        """Ready when the process has ended."""
        return self.process.sentinel if self._handle is None else self._handle

    @property
    def stopped(self) -> bool:
        """Whether it is stopped (SIGSTOP, Ctrl-Z)."""
        return is_stopped(self.process.pid or 0)

    def ended(self, patience_s: float = 0.0) -> bool:
        """Whether it has, waiting for it a little."""
        return bool(wait([self.sentinel], timeout=patience_s))

    def exit_code(self, patience_s: float = 0.0) -> int | None:
        """How it ended, waiting for it a little; ``None`` while it lives."""
        if not self.ended(patience_s):
            return None
        # The pidfd says that it has ended; how, only the fork server knows, which may be gone or
        # stopped.
        self.process.join(timeout=_REPORTED_S)
        return UNKNOWN if self.process.exitcode is None else self.process.exitcode

    def disconnect(self) -> None:
        """Close its lifeline: it ends at once, whatever it does."""
        self._lifeline.close()

    def end(self, patience_s: float = 0.5) -> None:
        """Make sure that it is gone."""
        # First its lifeline: a kernel that sends no signal for pipes leaves it to the thread of the
        # worker, which takes a moment.
        self.disconnect()
        if not self.ended(patience_s):
            self.kill()
            self.ended(limits.END_S)
        self.process.join(timeout=_REPORTED_S)

    def kill(self) -> None:
        """End it with SIGKILL."""
        with suppress(ProcessLookupError):
            if self._handle is None:
                self.process.kill()
            else:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # A default: when the interpreter ends, names of modules may be gone before this object.
        handle: int | None = getattr(self, "_handle", None)
        if handle is not None:
            close(handle)


class WorkerProcess(ChildProcess):
    """The process of one worker.

    `orders`: the worker's end of the connection that its orders come through; closed here.
    `listening`: see `placewright.runtime.program.Worker`; it stays open here.
    """

    def __init__(
        self, spec: WorkerSpec, orders: Channel, listening: socket.socket | None = None
    ) -> None:
        try:
            super().__init__(
                worker_main,
                (spec, orders, listening),
                f"placewright-{spec.device_name}",
                preloaded=preloaded_for(spec.program),
                needed=needed_for(spec.program),
            )
        finally:
            orders.close()


def preloaded_for(program: str) -> tuple[str, ...]:
    """Modules that the fork server loads for workers that execute this program."""
    own = "placewright.runtime.program", program.partition(":")[0]
    return (TORCH, *own) if load_program(program).uses_torch else own


def needed_for(program: str) -> tuple[str, ...]:
    """Those of them that would take each of its workers seconds to load."""
    loaded = load_program(program)
    own = (program.partition(":")[0],) if loaded.imports_much else ()
    return (TORCH, *own) if loaded.uses_torch else own


def begin_fork_server(program: str) -> None:
    """Start the fork server, if none is there, and go on while it loads torch and the program.

    Where that fails, the first worker tries again and says why.
    """
    module = program.partition(":")[0]
    fork_server_context((TORCH, "placewright.runtime.program", module), (TORCH,))
    with suppress(OSError, EOFError):
        _ensure_fork_server()


def start_process(make: Callable[[], Process], where: str) -> Process:
    """Start a process by `make`, again where the fork server was lost over it.

    Raises `WorkerError` where it was lost every time.
    """
    for turn in range(TRIES):
        # One that was killed refuses connections a moment before the system says that it has ended.
        time.sleep(turn * _ENDING_S)
        try:
            return make()
        except (OSError, EOFError) as error:
            last = error
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                gc.collect()  # pipes of processes that have ended are in cycles with their sessions
    raise WorkerError(
        "the worker process cannot be started",
        where=where,
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

    Workers need nothing of it, and a script of three lines has no ``__main__`` guard. One thread at
    a time: another one would take the stand-in for the script, and leave it there.
    """
    with _HIDING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


_HIDING = threading.Lock()
_ADDING = threading.RLock()
_TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


def fork_server_context(preloaded: Sequence[str], needed: Sequence[str] = ()) -> ForkServerContext:
    """Where processes are made; the modules are loaded before the first one.

    A fork server that has not all of `needed` is replaced by one that has, and what it had: every
    process would load them. Its own processes live on.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read once, when torch is loaded
    made, pid = get_context("forkserver"), _pid()
    known = [] if pid is None else list(_server()._preload_modules)
    if pid is not None:
        if set(needed) <= set(known):
            return made
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    made.set_forkserver_preload([*dict.fromkeys([*known, *preloaded, *needed])])
    return made


def start_in_fork_server(process: BaseProcess) -> None:
    """Start a process that `context` made.

    Raises `OSError`, `EOFError` where the fork server was killed meanwhile, or was stopped or
    silent for too long and was killed for it; the next process gets another one.
    """
    _ensure_fork_server()
    # Started anew in between, where one was killed, it gets the same environment.
    with warnings.catch_warnings(), _watched(), _environment():
        warnings.filterwarnings("ignore", "resource_tracker", UserWarning)
        process.start()


def _ensure_fork_server() -> None:
    keep_multiprocessing_here()
    with warnings.catch_warnings():  # that the tracker was killed and is replaced
        warnings.filterwarnings("ignore", "resource_tracker", UserWarning)
        with _environment(), private_temporary_files():
            resource_tracker.ensure_running()
            with _no_interrupts():
                forkserver.ensure_running()


@contextmanager
def _environment() -> Iterator[None]:
    """Give processes started meanwhile, by `multiprocessing`, the environment of workers.

    They import nothing from the current folder, and glibc asks for huge pages where the kernel
    offers them: a worker whose device has little room hands memory back in every step and gets it
    again, and filling it takes a fifth of the time with pages of 2 MiB. Both are read once, at the
    start.
    """
    tunables = os.environ.get(_TUNABLES, "")
    if _HUGE_PAGES not in tunables:
        tunables = f"{tunables}:{_HUGE_PAGES}=1".lstrip(":")
    added = safe_variables() | {_TUNABLES: tunables}
    with _ADDING:
        before = {name: os.environ.get(name) for name in added}
        os.environ.update(added)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _pid() -> int | None:
    """Of the fork server, where one was started by this process."""
    found: int | None = _server()._forkserver_pid
    return found


def _server() -> Any:
    return forkserver._forkserver


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block SIGINT, also in processes started meanwhile; one that arrives meanwhile waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _watched() -> Iterator[None]:
    """Kill a fork server that does not get the block done in time: the block ends with an error."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(_pid(), over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(pid: int | None, over: threading.Event) -> None:
    if pid is None:
        return
    countdown, stopped_s = limits.Countdown(limits.patience(limits.START_S)), 0.0
    while not over.wait(limits.LOOK_S):
        passed_s = countdown.look()
        # The process that it has just forked may be the one that is stopped: its start is waited
        # for too.
        stopped = [each for each in (pid, *children_of(pid)) if is_stopped(each)]
        stopped_s = stopped_s + passed_s if stopped else 0.0
        if countdown.over or stopped_s > limits.patience(limits.STOPPED_S):
            for each in stopped or [pid]:
                with suppress(OSError):
                    os.kill(each, signal.SIGKILL)
                    # Not taken for alive by `ensure_running`, which then finds it dead later, where
                    # Ctrl-C is not held back. It is left to be reaped there.
                    os.waitid(os.P_PID, each, os.WEXITED | os.WNOWAIT)
            stopped_s = 0.0


@atexit.register
def end_fork_server() -> None:
    """End it, and the resource tracker if that is stopped: both would end a moment after us.

    One that still loads torch would take seconds for that.
    """
    if os.getpid() != _LOADED_BY:  # a forked copy: they are its parent's
        return
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    with suppress(OSError):
        if (server := _pid()) is not None:
            os.kill(server, signal.SIGKILL)  # processes that it has forked are ended by their pids
        if tracker is not None and is_stopped(tracker):
            os.kill(tracker, signal.SIGCONT)
