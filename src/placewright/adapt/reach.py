"""Who can talk to whom now: every pair of nodes tries a connection."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from multiprocessing.connection import Connection

from placewright.execute.engines.process import main_hidden
from placewright.testbed.seat import NodeSeat

PORT = 29499
PATIENCE_S = 2.0
"""A connection that takes longer does not count: two lost packets."""


def all_talk(seats: Sequence[NodeSeat]) -> frozenset[str]:
    """The largest set of devices of which every two reach each other; the first of equals.

    A process group needs a connection between every two of its members.
    """
    pairs = {frozenset(p) for p in _connected(seats)}
    names = [seat.device for seat in seats]
    for size in range(len(names), 1, -1):
        for some in combinations(names, size):
            if all(frozenset(pair) in pairs for pair in combinations(some, 2)):
                return frozenset(some)
    return frozenset(names[:1])


def _connected(seats: Sequence[NodeSeat]) -> list[tuple[str, str]]:
    """Pairs of which the second accepted a connection of the first."""
    context = multiprocessing.get_context("forkserver")
    ends, processes = [], []
    for k, seat in enumerate(seats):
        here, there = context.Pipe()
        args = (seat, list(seats[:k]), there)
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
    return [(a.device, name) for a, names in zip(seats, found, strict=True) for name in names or []]


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


def _knock_and_answer(seat: NodeSeat, others: Sequence[NodeSeat], end: Connection) -> None:
    """In the seat: listen, and try to reach every other one."""
    seat.enter()
    with socket.create_server((seat.address, PORT), backlog=16):
        end.send([])
        end.recv()
        end.send([other.device for other in others if _reaches(other)])
        end.recv()


def _reaches(other: NodeSeat) -> bool:
    try:
        with socket.create_connection((other.address, PORT), timeout=PATIENCE_S):
            return True
    except OSError:
        return False
