"""Where the nodes' processes come from, and what each does first: it takes its seat."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from placewright.errors import WorkerError
from placewright.execute.engines.process import main_hidden
from placewright.execute.host import loopback
from placewright.testbed.seat import NodeSeat

PRELOADED = ("torch", "placewright.samples.training.trainer", "placewright.samples.moving.mover")
"""Loaded once, before the first process; a package that is not there is left out."""

SETTLE_S = 1.0
"""Until it is known how a process has ended."""

PORT = 29600
"""Free in a testbed, whose nodes have networks of their own."""


def start(target: Callable[..., None], spec: Any) -> tuple[BaseProcess, Connection]:
    """A process in a few hundredths of a second, and our end of the pipe to it."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read once, when torch is loaded
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(spec, theirs), daemon=True)
    with main_hidden():
        process.start()
    theirs.close()
    return process, ours


def answers(target: Callable[..., None], specs: Sequence[Any], limit_s: float) -> list[Any]:
    """What each process says, in order; none outlives this.

    Raises
    ------
    WorkerError
        A process died (names the first), or nobody has answered for `limit_s`.
    """
    pipes, processes = [], []
    try:
        for spec in specs:
            process, pipe = start(target, spec)
            processes.append(process)
            pipes.append(pipe)
        return _all(pipes, processes, limit_s)
    finally:
        for process in processes:
            process.join(timeout=2.0)
            process.kill()
            process.join(timeout=2.0)


def sit(seat: NodeSeat | None) -> None:
    """First thing in a fresh process: Ctrl-C is for who started it; then into a testbed, if any.

    Elsewhere all nodes are on this machine, and nobody else can reach them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if seat is not None:
        seat.enter()
        os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())


class NodeLeft(WorkerError):  # noqa: N818  (it is the node that has left)
    """A node's process was killed, or its node lost power; `ranks` says whose."""

    ranks: tuple[int, ...] = ()


def _all(pipes: list[Connection], processes: list[BaseProcess], limit_s: float) -> list[Any]:
    """One answer of each, whoever is first."""
    told: dict[int, Any] = {}
    deadline_s = time.perf_counter() + limit_s
    while len(told) < len(pipes):
        silent = {pipes[rank]: rank for rank in range(len(pipes)) if rank not in told}
        ready = wait(list(silent), timeout=max(0.0, deadline_s - time.perf_counter()))
        if not ready:
            names = ", ".join(str(rank) for rank in silent.values())
            raise WorkerError("no answer in time", where=f"node {names}", by=f"{limit_s:g} s")
        for pipe in pipes:
            if pipe in ready:
                told[silent[pipe]] = _answer(pipe, silent[pipe], processes)
    return [told[rank] for rank in range(len(pipes))]


def _answer(pipe: Connection, rank: int, processes: list[BaseProcess]) -> Any:
    try:
        return pipe.recv()
    except (EOFError, OSError):
        raise _death(rank, processes) from None


def _death(rank: int, processes: list[BaseProcess]) -> WorkerError:
    """Those who lose a neighbour raise too: a killed process is the cause, if there is one."""
    wait([process.sentinel for process in processes], timeout=SETTLE_S)
    processes[rank].join(timeout=SETTLE_S)
    killed = tuple(r for r, process in enumerate(processes) if (process.exitcode or 0) < 0)
    if not killed:
        return WorkerError("the training process died", where=f"node {rank}")
    error = NodeLeft("the training process was killed", where=f"node {killed[0]}")
    error.ranks = killed
    return error
