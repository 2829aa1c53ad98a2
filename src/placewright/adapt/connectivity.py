"""Who can talk to whom now: every pair of nodes tries a connection."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from multiprocessing.connection import Connection

from placewright.errors import RunError
from placewright.runtime.engines.process import main_hidden
from placewright.testbed.node_handle import NodeHandle

PORTS = range(10000, 20000)
"""Runs that share a testbed take each the one of its process number."""
PATIENCE_S = 2.0
"""A connection that takes longer does not count: two lost packets."""


def all_talk(handles: Sequence[NodeHandle]) -> frozenset[str]:
    """The largest set of devices of which every two reach each other; the first of equals.

    A process group needs a connection between every two of its members.

    Raises
    ------
    RunError
        No seat is there any more: the testbed has been taken down.
    """
    if handles and not any(handle.there for handle in handles):
        raise RunError(
            "the testbed has been taken down under the run",
            where=", ".join(handle.device for handle in handles),
            hint="`placewright testbed up` and run again; with --snapshots FOLDER a run goes on "
            "from its last snapshot",
        )
    handles = [handle for handle in handles if handle.there]
    pairs = {frozenset(p) for p in _connected(handles)}
    names = [handle.device for handle in handles]
    for size in range(len(names), 1, -1):
        for some in combinations(names, size):
            if all(frozenset(pair) in pairs for pair in combinations(some, 2)):
                return frozenset(some)
    return frozenset(names[:1])


def _connected(handles: Sequence[NodeHandle]) -> list[tuple[str, str]]:
    """Pairs of which the second accepted a connection of the first."""
    context = multiprocessing.get_context("forkserver")
    port = PORTS[os.getpid() % len(PORTS)]
    ends, processes = [], []
    for k, handle in enumerate(handles):
        here, there = context.Pipe()
        args = (handle, list(handles[:k]), there, port)
        process = context.Process(target=_knock_and_answer, args=args, daemon=True)
        with main_hidden():
            process.start()
        there.close()
        ends.append(here)
        processes.append(process)
    try:
        for end in ends:
            _heard(end)
        _tell(ends, "all listen")
        found = [_heard(end) for end in ends]
        _tell(ends, "done")
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [
        (a.device, name) for a, names in zip(handles, found, strict=True) for name in names or []
    ]


def _tell(ends: Sequence[Connection], word: str) -> None:
    for end in ends:
        with suppress(OSError):  # it has died: what it does not say says so
            end.send(word)


def _heard(end: Connection) -> list[str] | None:
    """What a process says; ``None`` where it has died or says nothing."""
    try:
        return end.recv() if end.poll(20 * PATIENCE_S) else None
    except (EOFError, OSError):
        return None


def _knock_and_answer(
    handle: NodeHandle, others: Sequence[NodeHandle], end: Connection, port: int
) -> None:
    """In the seat: listen, and try to reach every other one."""
    try:
        handle.enter()
    except RunError:
        return  # the testbed is going down: nobody is reached
    with socket.create_server((handle.address, port), backlog=16):
        end.send([])
        end.recv()
        end.send([other.device for other in others if _reaches(other, port)])
        end.recv()


def _reaches(other: NodeHandle, port: int) -> bool:
    try:
        with socket.create_connection((other.address, port), timeout=PATIENCE_S):
            return True
    except OSError:
        return False
