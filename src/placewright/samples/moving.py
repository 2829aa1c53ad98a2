"""Samples really move: one process per node, files over sockets, until each is where it belongs.

A process that dies is started again and goes on; a link that breaks is opened again. At the end
every sample is on exactly one node, or it is an error.
"""

from __future__ import annotations

import heapq
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from placewright.errors import RunError, WorkerError
from placewright.samples._mover import Fault, MoverSpec, Transfer, move_main
from placewright.samples._ports import play
from placewright.samples._processes import forkserver
from placewright.samples.images import Images
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.samples.shards import Shard, audit

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
    """

    move_s: float
    restarts: int


def deal(problem: SampleProblem, data: Images, folder: Path) -> tuple[list[Shard], dict[int, str]]:
    """Each node's samples as files in a folder of its own, and all checksums.

    Sample numbers count through the nodes; with classes, the class is the label.

    Raises
    ------
    RunError
        There are fewer images than samples.
    """
    if len(data) < int(problem.held.sum()):
        raise RunError(
            "there are too few images", by=f"{len(data)} for {int(problem.held.sum())} samples"
        )
    shards, digests, sample = [], {}, 0
    for i, name in enumerate(problem.node_names):
        shard = Shard(folder / f"{i}-{name}")
        shard.create()
        for _ in range(int(problem.held[i])):
            digests[sample] = shard.put(sample, data.pixels[sample], int(data.labels[sample]))
            sample += 1
        shards.append(shard)
    return shards, digests


def move(
    problem: SampleProblem,
    plan: SamplePlan,
    shards: list[Shard],
    digests: dict[int, str],
    *,
    speed: float = 1.0,
    faults: Mapping[int, Fault] | None = None,
    limit_s: float = 600.0,
) -> Moved:
    """Carry the moves of a plan out.

    Parameters
    ----------
    speed
        How many times faster than the problem says the links are.
    faults
        Trouble on purpose, by node.

    Raises
    ------
    RunError
        A sample is lost, doubled or damaged; a process keeps dying; it takes too long.
    """
    transfers = transfers_of(problem, plan, speed)
    addresses = tuple(("127.0.0.1", port) for port in _free_ports(problem.n))
    specs = [
        MoverSpec(
            i,
            shards[i].folder,
            addresses,
            tuple(t for t in transfers if t.source == i),
            (faults or {}).get(i),
        )
        for i in range(problem.n)
    ]
    with _Movers(specs) as movers:
        start = time.perf_counter()
        movers.go(start + limit_s)
        moved = Moved(time.perf_counter() - start, movers.restarts)
    audit(shards, digests)
    return moved


def transfers_of(problem: SampleProblem, plan: SamplePlan, speed: float = 1.0) -> list[Transfer]:
    """Which samples go when: the transfers as the judge plays them, with samples' numbers.

    A node sends on what has reached it last, and keeps what it held at the start.
    """
    played = play(problem, plan)
    first = 0
    here: list[list[int]] = []
    for count in problem.held.tolist():
        here.append(list(range(first, first + count)))
        first += count
    brought: dict[int, int] = defaultdict(lambda: -1)
    on_the_way: list[tuple[float, int, int, list[int]]] = []
    transfers = []
    spans = zip(played.move.tolist(), played.count.tolist(), played.start_s.tolist(), strict=True)
    for number, (m, count, start_s) in enumerate(spans):
        while on_the_way and on_the_way[0][0] <= start_s:
            _, arrived, node, samples = heapq.heappop(on_the_way)
            here[node] += samples
            brought.update(dict.fromkeys(samples, arrived))
        i, j = int(plan.source[m]), int(plan.target[m])
        taken = here[i][len(here[i]) - count :]
        del here[i][len(here[i]) - count :]
        sample_s = float(max(problem.send_s[i, j], problem.receive_s[i, j])) / speed
        transfers.append(
            Transfer(
                number,
                i,
                j,
                tuple(taken),
                tuple(brought[s] for s in taken),
                sample_s,
                float(problem.latency_s[i, j]) / speed,
            )
        )
        heapq.heappush(on_the_way, (float(played.end_s[number]), number, j, taken))
    return transfers


class _Movers:
    """The processes; whatever happens to the caller, none outlives it."""

    def __init__(self, specs: list[MoverSpec]) -> None:
        self.specs, self.restarts = specs, 0
        self.context = forkserver()
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []

    def __enter__(self) -> _Movers:
        try:
            for spec in self.specs:
                process, pipe = self._start(spec)
                self.processes.append(process)
                self.pipes.append(pipe)
            for pipe in self.pipes:
                pipe.recv()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def go(self, deadline_s: float) -> None:
        """Let them send, until all have done so."""
        for pipe in self.pipes:
            pipe.send("go")
        open_nodes = set(range(len(self.specs)))
        while open_nodes:
            left_s = deadline_s - time.perf_counter()
            if left_s <= 0:
                raise RunError("the move takes too long", by=f"{len(open_nodes)} nodes still send")
            wait([self.pipes[i] for i in open_nodes], timeout=min(left_s, 0.5))
            open_nodes = {i for i in open_nodes if not self._done(i)}

    def _done(self, i: int) -> bool:
        """Whether node i has sent everything; one that has died starts again."""
        try:
            return bool(self.pipes[i].poll() and self.pipes[i].recv() == "done")
        except (EOFError, OSError):
            self._again(i)
            return False

    def _again(self, i: int) -> None:
        self.processes[i].join(timeout=5.0)
        self.restarts += 1
        if self.restarts > MOST_RESTARTS * len(self.specs):
            raise WorkerError("a moving process keeps dying", where=f"node {i}")
        self.processes[i], self.pipes[i] = self._start(replace(self.specs[i], fault=None))
        self.pipes[i].recv()
        self.pipes[i].send("go")

    def _start(self, spec: MoverSpec) -> tuple[BaseProcess, Connection]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=move_main, args=(spec, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _end(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
            process.join(timeout=5.0)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
