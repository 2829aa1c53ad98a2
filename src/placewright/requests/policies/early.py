"""Baselines that bind a request to a server when it arrives; each server orders its own queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.requests.policy import NONE, Decision, Dispatch, Specification
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service


def unbound(queue: Queue, servers: Servers) -> list[int]:
    """Slots that are bound to no server, or to one that is down, first come first."""
    waiting = queue.by_arrival
    bound = queue.server[waiting]
    queue.server[waiting[(bound >= 0) & ~servers.up[bound]]] = -1
    found: list[int] = waiting[queue.server[waiting] < 0].tolist()
    return found


@final
@dataclass(frozen=True, slots=True)
class EarlyBinding(Specification):
    """A server at arrival, then an order and a variant, one request at a time.

    Parameters
    ----------
    server
        ``round-robin``, ``random``, ``shortest-queue`` (fewest requests), or ``least-completion``
        (earliest expected end of all that is bound there).
    order
        ``fifo``, ``edf`` (earliest deadline) or ``sjf`` (shortest job) on each server.
    variant
        ``largest`` (most accurate), ``fastest``, or ``cheapest`` (fastest of those that reach the
        request's minimum accuracy).
    drop
        Refuse a request that cannot keep its deadline when its turn comes.
    """

    server: Literal["round-robin", "random", "shortest-queue", "least-completion"] = "round-robin"
    order: Literal["fifo", "edf", "sjf"] = "fifo"
    variant: Literal["largest", "fastest", "cheapest"] = "cheapest"
    drop: bool = False
    policy: ClassVar[str] = "early"

    @property
    def name(self) -> str:
        """The rule for servers."""
        return self.server

    @classmethod
    def usual(cls) -> tuple[EarlyBinding, ...]:
        """One for each rule of binding; the cleverest keeps deadlines in mind."""
        simple = (cls(rule) for rule in ("round-robin", "random", "shortest-queue"))
        return *simple, cls("least-completion", "edf", drop=True)

    def start(self, service: Service, seed: int = 0) -> BoundQueues:
        """A policy object for one stream."""
        return BoundQueues(service, self, np.random.default_rng(seed))


@final
class BoundQueues:
    """The state of `EarlyBinding`."""

    eager: ClassVar[bool] = True

    def __init__(self, service: Service, options: EarlyBinding, rng: np.random.Generator) -> None:
        self.options, self.rng, self.next = options, rng, 0
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service = service
        self.alone_s = service.planned_s(1.0)[:, :, 1]
        self.runs = np.isfinite(self.alone_s)

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Bind what is new; each idle server takes its next request."""
        waiting = queue.by_arrival
        for slot in unbound(queue, servers):
            queue.server[slot] = self._bind(slot, now_s, queue, servers)
        dispatches, refused = [], []
        for server in servers.idle().tolist():
            mine = waiting[queue.server[waiting] == server]
            while len(mine):
                k = self._first(mine, server, queue)
                slot, variant = int(mine[k]), self._variant(int(mine[k]), server, queue)
                late = now_s + self.alone_s[server, variant] > queue.deadline_s[slot]
                if not (self.options.drop and late):
                    dispatches.append(Dispatch(server, variant, mine[k : k + 1].copy()))
                    break
                refused.append(slot)
                mine = np.delete(mine, k)
        return Decision(tuple(dispatches), np.array(refused) if refused else NONE)

    def _bind(self, slot: int, now_s: float, queue: Queue, servers: Servers) -> int:
        able = self._able(queue.family[slot]) & servers.up
        options = np.flatnonzero(able if able.any() else self._able(queue.family[slot]))
        rule, waiting = self.options.server, queue.by_arrival
        if rule == "round-robin":
            self.next += 1
            return int(options[(self.next - 1) % len(options)])
        if rule == "random":
            return int(self.rng.choice(options))
        bound = queue.server[waiting]
        if rule == "shortest-queue":
            held = np.bincount(bound[bound >= 0], minlength=len(able)) + servers.busy
            return int(options[held[options].argmin()])
        there = waiting[bound >= 0]
        variants = [self._variant(k, int(queue.server[k]), queue) for k in there.tolist()]
        own_s = self.alone_s[queue.server[there], np.array(variants, dtype=np.int64)]
        backlog_s = np.bincount(queue.server[there], own_s, minlength=len(able)).astype(np.float64)
        backlog_s += np.where(servers.busy, np.maximum(servers.free_s - now_s, 0.0), 0.0)
        ends_s = [
            backlog_s[i] + self.alone_s[i, self._variant(slot, i, queue)] for i in options.tolist()
        ]
        return int(options[int(np.argmin(ends_s))])

    def _able(self, family: int) -> BoolArray:
        own = self.runs[:, self.service.family == family]
        able: BoolArray = np.asarray(own.any(axis=1), dtype=np.bool_)
        return able

    def _first(self, mine: IntArray, server: int, queue: Queue) -> int:
        if self.options.order == "fifo":
            return 0
        if self.options.order == "edf":
            return int(queue.deadline_s[mine].argmin())
        taken = [self.alone_s[server, self._variant(k, server, queue)] for k in mine.tolist()]
        return int(np.argmin(taken))

    def _variant(self, slot: int, server: int, queue: Queue) -> int:
        s = self.service
        own = np.flatnonzero((s.family == queue.family[slot]) & self.runs[server])
        if self.options.variant == "largest":
            return int(own[s.accuracy[own].argmax()])
        if self.options.variant == "cheapest":
            good = own[s.accuracy[own] >= queue.min_accuracy[slot]]
            own = good if len(good) else own
        took: FloatArray = self.alone_s[server, own]
        return int(own[took.argmin()])
