"""SlackFit-like: the head's slack chooses variant and batch (SuperServe, NSDI 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.numerics.arrays import BoolArray, IntArray
from placewright.requests.policy import Decision, Dispatch, Specification
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service


@final
@dataclass(frozen=True, slots=True)
class SlackFit(Specification):
    """The variant and size whose time is nearest below the slack of the earliest deadline.

    Little slack means a backlog, and chooses fast variants. Departures: servers differ, so that
    idle ones are served in order of number, each with its own table; sizes larger than the queue
    are not tried; hopeless requests are refused.
    """

    policy: ClassVar[str] = "slack-fit"

    def start(self, service: Service, seed: int = 0) -> SlackFitting:
        """A policy object for one stream."""
        return SlackFitting(service)


@final
class SlackFitting:
    """The state of `SlackFit`: its tables."""

    eager: ClassVar[bool] = False

    def __init__(self, service: Service) -> None:
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service = service
        self.planned_s = service.planned_s(1.0)

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Earliest deadlines to idle servers."""
        s, left = self.service, queue.by_deadline.copy()
        dispatches: list[Dispatch] = []
        for server in servers.idle().tolist():
            head = self._head(server, left, now_s, queue)
            if head < 0:
                continue
            mine = left[queue.family[left] == queue.family[head]][: s.max_batch]
            table_s = self.planned_s[server, :, 1 : len(mine) + 1]
            own = (s.family == queue.family[head]) & (s.accuracy >= queue.min_accuracy[head])
            fits = own[:, None] & (table_s <= queue.deadline_s[head] - now_s)
            # The longest that still fits the slack; `_head` has seen to it that one does.
            at = int(np.where(fits, table_s, -1.0).argmax())
            variant, size = at // table_s.shape[1], at % table_s.shape[1] + 1
            good = mine[(queue.min_accuracy[mine] <= s.accuracy[variant]) & (mine != head)]
            chosen = np.concatenate([[head], good[: size - 1]])
            dispatches.append(Dispatch(server, variant, chosen))
            left = left[~np.isin(left, chosen)]
        return Decision(tuple(dispatches), self._hopeless(left, now_s, queue, servers))

    def _head(self, server: int, left: IntArray, now_s: float, queue: Queue) -> int:
        """The earliest deadline that some variant and size keep on this server, or -1."""
        s = self.service
        least_s = np.full(s.variants, np.inf)
        for f in np.unique(queue.family[left]).tolist():
            mine, most = s.family == f, int((queue.family[left] == f).sum())
            least_s[mine] = self.planned_s[server, mine, 1 : most + 1].min(axis=1)
        fits = self._own(left, queue) & (least_s <= (queue.deadline_s[left] - now_s)[:, None])
        found = fits.any(axis=1)
        return int(left[found.argmax()]) if found.any() else -1

    def _own(self, left: IntArray, queue: Queue) -> BoolArray:
        """Shape (requests, variants): of its family and accurate enough."""
        s = self.service
        own: BoolArray = s.family == queue.family[left, None]
        return own & (s.accuracy >= queue.min_accuracy[left, None])

    def _hopeless(self, left: IntArray, now_s: float, queue: Queue, servers: Servers) -> IntArray:
        fastest_s = self.planned_s[servers.up, :, 1].min(axis=0, initial=np.inf)
        least_s = np.where(self._own(left, queue), fastest_s, np.inf).min(axis=1, initial=np.inf)
        late: IntArray = left[now_s + least_s > queue.deadline_s[left]]
        return late
