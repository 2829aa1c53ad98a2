"""The fork server: the process with PyTorch loaded that worker processes are forked from.

It is `multiprocessing`'s own, shared with whoever else uses it in this process. What is added: no
traceback where Ctrl-C comes while it or a worker starts, a limit where it does not answer, another
one where it was killed, and its end where it was stopped.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from placewright.runtime import limits
from placewright.runtime.scratch import keep_multiprocessing_here


def context(preloaded: Sequence[str]) -> ForkServerContext:
    """Where processes are made; the modules are loaded before the first one."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read once, when torch is loaded
    made = get_context("forkserver")
    made.set_forkserver_preload(list(preloaded))
    return made


def start(process: BaseProcess) -> None:
    """Start a process that `context` made.

    Raises
    ------
    OSError, EOFError
        The fork server was killed meanwhile, or was stopped or silent for too long and was killed
        for it; the next process gets another one.
    """
    keep_multiprocessing_here()
    with warnings.catch_warnings():  # that the tracker was killed and is replaced
        warnings.filterwarnings("ignore", "resource_tracker", UserWarning)
        resource_tracker.ensure_running()
        with _no_interrupts():
            forkserver.ensure_running()
        with _watched():
            process.start()


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; one that a debugger holds was not."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat[stat.rindex(b")") + 2 :][:1] == b"T"
    return False


def _children(pid: int) -> list[int]:
    """One of them may be the process that is being started, and read nothing of what it is told."""
    with suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _pid() -> int | None:
    """Of the fork server, where one was started by this process."""
    found: int | None = _server()._forkserver_pid
    return found


def _server() -> Any:
    return forkserver._forkserver


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Whoever is started meanwhile is born deaf to Ctrl-C; one that comes meanwhile waits."""
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
        stopped = [each for each in (pid, *_children(pid)) if is_stopped(each)]
        stopped_s = stopped_s + passed_s if stopped else 0.0
        if countdown.over or stopped_s > limits.patience(limits.STOPPED_S):
            for each in stopped or [pid]:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            stopped_s = 0.0


@atexit.register
def _wake() -> None:
    """Both helpers end when we do, unless they are stopped."""
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    for pid in (_pid(), tracker):
        if pid is not None and is_stopped(pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)
