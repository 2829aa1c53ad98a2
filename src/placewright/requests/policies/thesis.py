"""The two steps of the thesis: offload to a server at arrival, schedule on each server.

Z. Y. Yang, Southeast University 2021, part 2: a task goes to a server by server load, server
performance and deadline; each server chooses the model for each task and orders the tasks by time
sensitivity and accuracy sensitivity. The rules are not public; these are ours, in its words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.requests.policies.early import unbound
from placewright.requests.policy import NONE, Decision, Dispatch, Specification
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service


@final
@dataclass(frozen=True, slots=True)
class TwoSteps(Specification):
    """Offloading, then scheduling.

    Offloading: of the servers whose backlog leaves time for some acceptable variant, the one that
    promises the most accuracy, weighted by the request's accuracy sensitivity, less its relative
    load, weighted by its time sensitivity. Scheduling: by time sensitivity over slack; the
    most accurate variant that keeps the request's own deadline; while some bound request would be
    late even with its fastest variant, the longest of those before it is dropped (Moore-Hodgson).
    """

    policy: ClassVar[str] = "thesis"

    def start(self, service: Service, seed: int = 0) -> OffloadAndSchedule:
        """A policy object for one stream."""
        return OffloadAndSchedule(service)


@final
class OffloadAndSchedule:
    """The state of `TwoSteps`: its tables."""

    eager: ClassVar[bool] = True

    def __init__(self, service: Service) -> None:
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service = service
        self.alone_s = service.planned_s(1.0)[:, :, 1]

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Offload what is new; schedule every idle server."""
        waiting = queue.by_arrival
        for slot in unbound(queue, servers):
            queue.server[slot] = self._offload(slot, now_s, queue, servers)
        dispatches, refused = [], []
        for server in servers.idle().tolist():
            mine = [k for k in waiting.tolist() if queue.server[k] == server]
            mine, dropped = self._dropped(mine, server, now_s, queue)
            refused += dropped
            if mine:
                slot = max(mine, key=lambda k: self._urgency(k, now_s, queue))
                dispatches.append(
                    Dispatch(server, self._variant(slot, server, now_s, queue), np.array([slot]))
                )
        return Decision(tuple(dispatches), np.array(refused) if refused else NONE)

    def _acceptable(self, slot: int, queue: Queue) -> list[int]:
        s = self.service
        own = (s.family == queue.family[slot]) & (s.accuracy >= queue.min_accuracy[slot])
        return (
            np.flatnonzero(own).tolist() or np.flatnonzero(s.family == queue.family[slot]).tolist()
        )

    def _fastest_s(self, slot: int, server: int, queue: Queue) -> float:
        return float(self.alone_s[server, self._acceptable(slot, queue)].min())

    def _offload(self, slot: int, now_s: float, queue: Queue, servers: Servers) -> int:
        backlog_s = np.where(servers.busy, np.maximum(servers.free_s - now_s, 0.0), 0.0)
        for k in queue.by_arrival.tolist():
            if queue.server[k] >= 0:
                backlog_s[queue.server[k]] += self._fastest_s(k, int(queue.server[k]), queue)
        slack_s = queue.deadline_s[slot] - now_s - backlog_s
        own, s = self._acceptable(slot, queue), self.service
        fits = self.alone_s[:, own] <= slack_s[:, None]
        promised = np.where(fits, s.accuracy[own], 0.0).max(axis=1)
        load = backlog_s / max(float(backlog_s.max()), 1e-9)
        value = queue.accuracy_sensitivity[slot] * promised - queue.time_sensitivity[slot] * load
        value = np.where(fits.any(axis=1) & servers.up, value, -np.inf)
        if np.isfinite(value).any():
            return int(value.argmax())
        ends_s = backlog_s + self.alone_s[:, own].min(axis=1)
        return int(np.where(servers.up, ends_s, np.inf).argmin())

    def _urgency(self, slot: int, now_s: float, queue: Queue) -> tuple[float, int]:
        slack_s = max(float(queue.deadline_s[slot]) - now_s, 1e-9)
        return (0.05 + float(queue.time_sensitivity[slot])) / slack_s, -int(queue.id[slot])

    def _variant(self, slot: int, server: int, now_s: float, queue: Queue) -> int:
        own, s = self._acceptable(slot, queue), self.service
        kept = [v for v in own if now_s + self.alone_s[server, v] <= queue.deadline_s[slot]]
        if kept:
            return max(kept, key=lambda v: float(s.accuracy[v]))
        return min(own, key=lambda v: float(self.alone_s[server, v]))

    def _dropped(
        self, mine: list[int], server: int, now_s: float, queue: Queue
    ) -> tuple[list[int], list[int]]:
        """Moore-Hodgson with the fastest acceptable variants: the kept and the dropped."""
        kept: list[tuple[float, int, int]] = []  # seconds, id, slot: ties do not depend on slots
        dropped, end_s = [], now_s
        for slot in sorted(mine, key=lambda k: (float(queue.deadline_s[k]), int(queue.id[k]))):
            took_s = self._fastest_s(slot, server, queue)
            kept.append((took_s, int(queue.id[slot]), slot))
            end_s += took_s
            if end_s > queue.deadline_s[slot]:
                # Dropping the longest one so far keeps the most requests in time (Moore 1968).
                longest = max(kept)
                kept.remove(longest)
                end_s -= longest[0]
                dropped.append(longest[2])
        return [slot for _, _, slot in kept], dropped
