"""Where the nodes' processes come from, and what each does first: it takes its seat."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from placewright.errors import WorkerError
from placewright.runtime import limits
from placewright.runtime.engines.process import ChildProcess, started
from placewright.runtime.host import loopback
from placewright.runtime.worker import end_with_parent
from placewright.testbed.node_handle import NodeHandle

PRELOADED = ("torch", "placewright.samples.training.trainer", "placewright.samples.moving.mover")
"""Loaded once, before the first process; a package that is not there is left out."""

SETTLE_S = 1.0
"""Until it is known how a process has ended."""

PORT = 29600
"""Free in a testbed, whose nodes have networks of their own."""


def start(target: Callable[..., None], spec: Any) -> tuple[ChildProcess, Connection]:
    """A process in a few hundredths of a second, and our end of the pipe to it.

    Raises
    ------
    WorkerError
        It cannot be started.
    """
    pipes: list[Connection] = []

    def make() -> ChildProcess:
        ours, theirs = Pipe()
        pipes[:] = [ours]
        try:
            return ChildProcess(_run, (target, spec, theirs), "placewright-node", PRELOADED)
        finally:
            theirs.close()

    process = started(make, "a node's process")
    return process, pipes[0]


def _run(target: Callable[..., None], spec: Any, told: Connection, lifeline: Connection) -> None:
    """The first line of every node's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(lifeline)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # nobody listens any more
        target(spec, told)


def answers(target: Callable[..., None], specs: Sequence[Any], limit_s: float) -> list[Any]:
    """What each process says, in order; none outlives this.

    Raises
    ------
    NodeLeft
        A process was killed, or stopped and then killed for it (names the first).
    WorkerError
        A process died, or nobody has answered for `limit_s`.
    """
    pipes: list[Connection] = []
    processes: list[ChildProcess] = []
    try:
        for spec in specs:
            process, pipe = start(target, spec)
            processes.append(process)
            pipes.append(pipe)
        told = _all(pipes, processes, limit_s)
        wait([process.sentinel for process in processes], timeout=SETTLE_S)
        return told
    finally:
        for process in processes:
            process.cut()
        for process in processes:
            process.end()


def sit(handle: NodeHandle | None) -> None:
    """First thing in a fresh process: Ctrl-C is for who started it; then into a testbed, if any.

    Elsewhere all nodes are on this machine, and nobody else can reach them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if handle is not None:
        handle.enter()
        os.environ["GLOO_SOCKET_IFNAME"] = handle.interface
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())


class NodeLeft(WorkerError):  # noqa: N818  (it is the node that has left)
    """A node's process was killed, or its node lost power; `ranks` says whose."""

    ranks: tuple[int, ...] = ()


def _all(
    pipes: Sequence[Connection], processes: Sequence[ChildProcess], limit_s: float
) -> list[Any]:
    """One answer of each, whoever is first."""
    told: dict[int, Any] = {}
    countdown, still = limits.Countdown(limits.patience(limit_s)), Standstill(processes)
    while len(told) < len(pipes):
        silent = {pipes[rank]: rank for rank in range(len(pipes)) if rank not in told}
        ends = {processes[rank].sentinel: rank for rank in silent.values()}
        ready = wait([*silent, *ends], timeout=countdown.next_s)
        passed_s = countdown.look()
        if stopped := still.look(silent.values(), passed_s):
            raise _left("the process is stopped (SIGSTOP) and was ended", stopped)
        if not ready and countdown.over:
            names = ", ".join(str(rank) for rank in silent.values())
            raise WorkerError(
                "no answer in time",
                where=f"node {names}",
                by=f"{countdown.limit_s:g} s",
                hint=f"where nodes are only slow, {limits.VARIABLE}=4 waits four times as long",
            )
        ended = {ends[end] for end in ready if end in ends}
        for rank in {silent[end] for end in ready if end in silent} | ended:
            told[rank] = _answer(pipes[rank], rank, processes)
    return [told[rank] for rank in range(len(pipes))]


def _answer(pipe: Connection, rank: int, processes: Sequence[ChildProcess]) -> Any:
    try:
        if pipe.poll(SETTLE_S):
            return pipe.recv()
    except (EOFError, OSError):
        pass
    raise _death(rank, processes) from None


def _death(rank: int, processes: Sequence[ChildProcess]) -> WorkerError:
    """Those who lose a neighbour raise too: a killed process is the cause, if there is one."""
    wait([process.sentinel for process in processes], timeout=SETTLE_S)
    processes[rank].ended(SETTLE_S)
    codes = [process.exit_code() or 0 for process in processes]
    killed = tuple(r for r, code in enumerate(codes) if code < 0)
    if killed:
        return _left("the process was killed", killed)
    return WorkerError("the process died", where=f"node {rank}", by=f"exit code {codes[rank]}")


def _left(how: str, ranks: tuple[int, ...]) -> NodeLeft:
    error = NodeLeft(how, where=f"node {ranks[0]}")
    error.ranks = ranks
    return error


class Standstill:
    """Which of some processes have been stopped (SIGSTOP) for too long."""

    def __init__(self, processes: Sequence[ChildProcess]) -> None:
        self._processes = processes
        self._stopped_s: dict[int, float] = {}

    def look(self, ranks: Iterable[int], passed_s: float) -> tuple[int, ...]:
        """Those that are, `passed_s` seconds after the last look."""
        for rank in ranks:
            before_s = self._stopped_s.get(rank, 0.0)
            self._stopped_s[rank] = before_s + passed_s if self._processes[rank].stopped else 0.0
        limit_s = limits.patience(limits.STOPPED_S)
        return tuple(rank for rank, stopped_s in self._stopped_s.items() if stopped_s > limit_s)
