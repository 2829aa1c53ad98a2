"""Samples really move: one process per node, files over sockets, until each is where it belongs.

A process that dies is started again and goes on; a link that breaks is opened again. At the end
every sample is on exactly one node, or it is an error.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

import numpy as np

from placewright.errors import RunError, WorkerError
from placewright.numerics.arrays import FloatArray
from placewright.runtime import limits
from placewright.runtime.connections.authentication import LOOPBACK
from placewright.runtime.engines.process import ChildProcess
from placewright.samples.data.dealing import held_by
from placewright.samples.data.shards import Shard, audit
from placewright.samples.moving.mover import Fault, MoverSpec, Sent, move_main
from placewright.samples.moving.transfers import transfers_of
from placewright.samples.nodes.processes import PORT, Standstill, start
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.testbed.node_handle import NodeHandle

MOST_RESTARTS = 5
"""Per node: a process that dies more often is ill."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How the move went.

    Attributes
    ----------
    move_s
        Seconds from the first transfer to the last.
    restarts
        Processes that died and were started again.
    sample_s
        Shape (n, n): seconds of one sample as measured, ``nan`` where none went.
    spans
        ``(source, target, samples, from, to)`` of each connection that went through.
    """

    move_s: float
    restarts: int
    sample_s: FloatArray
    spans: tuple[tuple[int, int, int, float, float], ...] = ()


def move(
    problem: SampleProblem,
    plan: SamplePlan,
    shards: list[Shard],
    digests: dict[int, str],
    *,
    speed: float = 1.0,
    handles: Sequence[NodeHandle] = (),
    faults: Mapping[int, Fault] | None = None,
    limit_s: float = 600.0,
) -> Moved:
    """Carry the moves of a plan out.

    Parameters
    ----------
    speed
        How many times faster than the problem says the links are emulated.
    seats
        Where the nodes sit in a testbed, whose links are as slow as they are by themselves.
    faults
        Trouble on purpose, by node.

    Raises
    ------
    RunError
        A sample is lost, doubled or damaged; a process keeps dying; it takes too long.
    """
    for shard in shards:
        shard.forget()
    held = held_by(problem, shards)
    transfers = transfers_of(problem, plan, float("inf") if handles else speed, held)
    secret = secrets.token_bytes(32)
    with _ports(problem.n, handles) as (addresses, ports):
        specs = [
            MoverSpec(
                node=i,
                folder=shards[i].folder,
                addresses=addresses,
                transfers=tuple(t for t in transfers if t.source == i),
                secret=secret,
                listening=ports[i],
                fault=(faults or {}).get(i),
                handle=handles[i] if handles else None,
            )
            for i in range(problem.n)
        ]
        with _Movers(specs) as movers:
            begun = time.perf_counter()
            movers.go(begun + limit_s)
            took_s = time.perf_counter() - begun
            moved = Moved(took_s, movers.restarts, movers.sample_s(), movers.spans(begun))
    audit(shards, digests)
    return moved


class _Movers:
    """The processes; whatever happens to the caller, none outlives it."""

    def __init__(self, specs: list[MoverSpec]) -> None:
        self.specs, self.restarts = specs, 0
        self.sent: dict[int, Sent] = {}
        self.processes: list[ChildProcess] = []
        self.pipes: list[Connection] = []
        self._still = Standstill(self.processes)

    def __enter__(self) -> _Movers:
        try:
            for spec in self.specs:
                process, pipe = start(move_main, spec)
                self.processes.append(process)
                self.pipes.append(pipe)
            for i in range(len(self.specs)):
                while not self._ready(i):
                    self._replace(i)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def go(self, deadline_s: float) -> None:
        """Let them send, until all have done so."""
        for pipe in self.pipes:
            with suppress(OSError):  # it has died: that is seen below
                pipe.send("go")
        open_nodes = set(range(len(self.specs)))
        countdown = limits.Countdown(deadline_s - time.perf_counter())
        while open_nodes:
            wait([self.pipes[i] for i in open_nodes], timeout=countdown.next_s)
            passed_s = countdown.look()
            if countdown.over:
                raise RunError(
                    "the move takes too long",
                    by=f"{len(open_nodes)} nodes still send after {countdown.limit_s:.0f} s",
                    hint="raise --speed, or move fewer samples",
                )
            for i in self._still.look(range(len(self.processes)), passed_s):
                self.processes[i].kill()
            for i in set(self.sent) - open_nodes:  # others may still send to it
                if self.processes[i].ended():
                    self._again(i)
            open_nodes = {i for i in open_nodes if not self._done(i)}

    def sample_s(self) -> FloatArray:
        """Seconds over samples, of every pair that has been at it."""
        taken, count = np.zeros((2, len(self.specs), len(self.specs)))
        for i, sent in self.sent.items():
            for j, samples, begun, ended in sent.spans:
                taken[i, j] += ended - begun
                count[i, j] += samples
        each_s: FloatArray = np.where(count > 0, taken / np.maximum(count, 1), np.nan)
        return each_s

    def spans(self, zero_s: float) -> tuple[tuple[int, int, int, float, float], ...]:
        """Every connection, in the order of their starts."""
        spans = [
            (i, j, samples, begun - zero_s, ended - zero_s)
            for i, sent in self.sent.items()
            for j, samples, begun, ended in sent.spans
        ]
        return tuple(sorted(spans, key=lambda span: span[3]))

    def _done(self, i: int) -> bool:
        """Whether node i has sent everything; one that has died starts again."""
        try:
            if self.pipes[i].poll():
                self.sent[i] = self.pipes[i].recv()
            return i in self.sent
        except (EOFError, OSError):
            self._again(i)
            return False

    def _again(self, i: int) -> None:
        """Another process for node i, which goes on where the last one was."""
        self._replace(i)
        while not self._ready(i):
            self._replace(i)
        with suppress(OSError):
            self.pipes[i].send("go")

    def _replace(self, i: int) -> None:
        self.restarts += 1
        if self.restarts > MOST_RESTARTS * len(self.specs):
            raise WorkerError("a moving process keeps dying", where=f"node {i}")
        self.pipes[i].close()
        self.processes[i].end()
        self.processes[i], self.pipes[i] = start(move_main, replace(self.specs[i], fault=None))

    def _ready(self, i: int) -> bool:
        """Whether node i's process says that it can begin, before it has to be replaced."""
        countdown, still = (
            limits.Countdown(limits.patience(limits.START_S)),
            Standstill([self.processes[i]]),
        )
        while not countdown.over:
            try:
                if self.pipes[i].poll(countdown.next_s):
                    self.pipes[i].recv()
                    return True
            except (EOFError, OSError):
                return False
            if still.look([0], countdown.look()):
                return False
        return False

    def _end(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.cut()
        for process in self.processes:
            process.end()


Addresses = tuple[tuple[str, int], ...]


@contextmanager
def _ports(
    count: int, handles: Sequence[NodeHandle]
) -> Iterator[tuple[Addresses, tuple[socket.socket | None, ...]]]:
    """Where the nodes listen, and the ports, which are ours before any process has started.

    They stay open when a process dies: no other user can take the port before it starts again. In
    a testbed nodes have networks of their own, where each process opens its port by itself.
    """
    if handles:
        yield tuple((handle.address, PORT) for handle in handles), (None,) * count
        return
    with ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        yield tuple((LOOPBACK, int(port.getsockname()[1])) for port in ports), tuple(ports)
