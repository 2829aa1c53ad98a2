"""Move samples for real: one process per node, files over sockets, until each is where it belongs.

A process that dies is started again and goes on; a link that breaks is opened again. At the end
every sample is on exactly one node, or it is an error.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.errors import RunError, WorkerError
from placewright.numerics.arrays import FloatArray
from placewright.runtime import limits
from placewright.runtime.engines.local import LocalGroup
from placewright.samples.data import Held, Shard, audit, held_by, numbered
from placewright.samples.judge import simulate_transfers
from placewright.samples.mover import Fault, MoveOrder, SamplesSent, SampleTransfer
from placewright.samples.nodes import NodeWorkers, workers_or_own
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem

MOST_RESTARTS = 5
"""Per node: a process that dies more often will go on dying."""


@dataclass(frozen=True, slots=True)
class MoveResult:
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
    workers: NodeWorkers | None = None,
    faults: Mapping[int, Fault] | None = None,
    limit_s: float = 600.0,
) -> MoveResult:
    """Execute the moves of a plan.

    Raises `RunError`: a sample is lost, doubled or damaged; a process keeps dying; it takes too
    long.

    Parameters
    ----------
    speed
        How many times faster than in the problem the links are emulated.
    workers
        The nodes' processes; others for the length of this call where none are given. Links of a
        testbed are as slow as they are by themselves.
    faults
        Injected, by node.
    """
    for shard in shards:
        shard.forget()
    held = held_by(problem, shards)
    with workers_or_own(workers) as nodes, nodes.group(problem.node_names) as group:
        transfers = transfers_of(problem, plan, float("inf") if nodes.real else speed, held)
        orders = [
            MoveOrder(
                folder=str(shards[i].folder),
                addresses=group.addresses,
                transfers=tuple(t for t in transfers if t.source == i),
                secret=nodes.secret,
                fault=(faults or {}).get(i),
            )
            for i in range(problem.n)
        ]
        movers = _Movers(group, orders)
        begun = time.perf_counter()
        movers.send(limit_s)
        took_s = time.perf_counter() - begun
    audit(shards, digests)
    return MoveResult(took_s, movers.restarts, movers.sample_s(), movers.spans(begun))


class _Movers:
    """The nodes' workers during one move; those that die or are stopped are started again."""

    def __init__(self, group: LocalGroup, orders: list[MoveOrder]) -> None:
        self.group, self.orders, self.restarts = group, orders, 0
        self.sent: dict[int, SamplesSent] = {}
        for rank, order in enumerate(orders):
            group.give(rank, "prepare_move", order)
        for rank in range(len(orders)):
            if not self._answered(rank, 1):
                self._restart(rank)

    def send(self, limit_s: float) -> None:
        """Let all nodes send, until they have sent everything."""
        everyone = range(len(self.orders))
        for rank in everyone:
            self.group.give(rank, "send_samples")
        sending = set(everyone)
        countdown = limits.Countdown(limit_s)
        while sending:
            # A node that has sent everything is watched too: others may still send to it.
            spoke, ended = self.group.ready(everyone, countdown.next_s)
            stopped = self.group.stopped_too_long(everyone, countdown.look())
            if countdown.over:
                raise RunError(
                    "the move takes too long",
                    by=f"{len(sending)} nodes still send after {countdown.limit_s:.0f} s",
                    hint="raise --speed, or move fewer samples",
                )
            for rank in {*spoke, *ended, *stopped}:
                # Who speaks and ends too is restarted when its end alone is seen, in a later turn.
                answer = self._answer(rank) if rank in spoke else None
                if answer is not None:
                    # A node that was restarted behind its answer has little left to send: its first
                    # answer is kept.
                    self.sent.setdefault(rank, answer[0])
                    sending.discard(rank)
                else:
                    self._restart(rank)
                    self.group.give(rank, "send_samples")
                    sending.add(rank)

    def sample_s(self) -> FloatArray:
        """Seconds over samples, of every pair that has been at it."""
        taken, count = np.zeros((2, len(self.orders), len(self.orders)))
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

    def _restart(self, rank: int) -> None:
        """Another process for a node, which goes on where the last one was."""
        # An injected fault comes once.
        order, ready = replace(self.orders[rank], fault=None), False
        while not ready:
            self.restarts += 1
            if self.restarts > MOST_RESTARTS * len(self.orders):
                raise WorkerError(
                    "a moving process keeps dying", where=self.group.worker_name(rank)
                )
            self.group.restart(rank)
            self.group.give(rank, "prepare_move", order)
            ready = self._answered(rank, 2)  # that it has started, and that it is prepared

    def _answered(self, rank: int, count: int) -> bool:
        """Whether a worker gives so many answers before it has to be replaced."""
        countdown = limits.Countdown(limits.patience(limits.START_S))
        while count and not countdown.over:
            spoke, ended = self.group.ready([rank], countdown.next_s)
            stopped = self.group.stopped_too_long([rank], countdown.look())
            if spoke and self._answer(rank) is not None:
                count -= 1
            elif spoke or ended or stopped:
                return False
        return not count

    def _answer(self, rank: int) -> tuple[Any] | None:
        """A worker's answer, ``None`` where it has died."""
        try:
            status, value = self.group.receive(rank)
        except (EOFError, OSError):
            return None
        if status == "error":
            raise self.group.raised_error(rank, str(value))
        return (value,)


def transfers_of(
    problem: SampleProblem, plan: SamplePlan, speed: float = 1.0, held: Held | None = None
) -> list[SampleTransfer]:
    """The transfers of a plan, in the order of their start.

    With relays a node sends on what has reached it last, and keeps what it held at the start.
    Without them it sends what it held at the start, and all classes for a neighbour over one
    connection.

    `speed`: how many times faster than in the problem links are emulated; ``inf``: not at all.
    `held`: samples by node and class; as they were dealt by default.
    """
    simulated = simulate_transfers(problem, plan)
    here = [[list(samples) for samples in node] for node in held or numbered(problem)]
    brought: dict[int, int] = defaultdict(lambda: -1)
    on_the_way: list[tuple[float, int, int, int, list[int]]] = []
    transfers = []
    spans = zip(
        simulated.move.tolist(), simulated.count.tolist(), simulated.start_s.tolist(), strict=True
    )
    for number, (m, count, start_s) in enumerate(spans):
        # What has arrived by then is on top of the pile, and goes on first: the rest stays where it
        # was.
        while on_the_way and on_the_way[0][0] <= start_s:
            _, arrived, node, kind, samples = heapq.heappop(on_the_way)
            here[node][kind] += samples
            brought.update(dict.fromkeys(samples, arrived))
        i, j, kind = int(plan.source[m]), int(plan.target[m]), int(plan.sample_class[m])
        pile = here[i][kind]
        taken = pile[len(pile) - count :]
        del pile[len(pile) - count :]
        transfers.append(
            SampleTransfer(
                number,
                i,
                j,
                tuple(taken),
                tuple(brought[s] for s in taken),
                (-1,) * count,
                float(max(problem.send_s[i, j], problem.receive_s[i, j])) / speed,
                float(problem.latency_s[i, j]) / speed,
            )
        )
        if problem.relay:
            heapq.heappush(on_the_way, (float(simulated.end_s[number]), number, j, kind, taken))
    return _with_returns(transfers) if problem.relay else _joined(transfers)


def _with_returns(transfers: list[SampleTransfer]) -> list[SampleTransfer]:
    """Transfers with `SampleTransfer.brought_back_by`."""
    following: dict[tuple[int, int], int] = {}  # node, sample: the next transfer that brings it
    found = []
    # From the last to the first: what is entered is the next arrival behind each transfer.
    for one in reversed(transfers):
        back = tuple(following.get((one.source, s), -1) for s in one.samples)
        found.append(replace(one, brought_back_by=back))
        following.update(dict.fromkeys(((one.target, s) for s in one.samples), one.number))
    return found[::-1]


def _joined(transfers: list[SampleTransfer]) -> list[SampleTransfer]:
    """Transfers that a node sends to one neighbour in a row, as one."""
    joined: list[SampleTransfer] = []
    latest: dict[int, int] = {}
    for one in transfers:
        at = latest.get(one.source)
        if at is not None and joined[at].target == one.target:
            before = joined[at]
            joined[at] = replace(
                before,
                samples=before.samples + one.samples,
                brought_by=before.brought_by + one.brought_by,
                brought_back_by=before.brought_back_by + one.brought_back_by,
            )
        else:
            latest[one.source] = len(joined)
            joined.append(one)
    return joined
