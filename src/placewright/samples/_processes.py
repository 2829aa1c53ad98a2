"""Where the nodes' processes come from, and what each does first: it takes its seat."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from placewright.errors import WorkerError
from placewright.execute.group import main_hidden
from placewright.testbed.seat import NodeSeat

PRELOADED = ("torch", "placewright.samples._trainer", "placewright.samples._mover")
"""Loaded once, before the first process; a package that is not there is left out."""

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
        return [_answer(pipe, rank, limit_s) for rank, pipe in enumerate(pipes)]
    finally:
        for process in processes:
            process.join(timeout=2.0)
            process.kill()
            process.join(timeout=2.0)


def sit(seat: NodeSeat | None) -> None:
    """Enter a testbed, first thing in a fresh process; nothing where there is none."""
    if seat is not None:
        seat.enter()
        os.environ["GLOO_SOCKET_IFNAME"] = seat.interface


def _answer(pipe: Connection, rank: int, limit_s: float) -> Any:
    if not wait([pipe], timeout=limit_s):
        raise WorkerError("no answer in time", where=f"node {rank}", by=f"{limit_s:g} s")
    try:
        return pipe.recv()
    except EOFError:
        raise WorkerError("the training process died", where=f"node {rank}") from None
