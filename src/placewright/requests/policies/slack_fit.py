"""SlackFit-like: the head's slack chooses variant and batch (SuperServe, NSDI 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.requests.policies.specification import Specification
from placewright.requests.policy import NONE, Decision, Dispatch
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
        self.planned_s = service.planned_s(1.0) + service.round_trip_s[:, None, None]

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Earliest deadlines to idle servers."""
        s, left = self.service, queue.by_deadline.tolist()
        dispatches: list[Dispatch] = []
        for server in servers.idle().tolist():
            for head in left:
                family = queue.family[head]
                mine = [k for k in left if queue.family[k] == family][: s.max_batch]
                table_s = self.planned_s[server, :, 1 : len(mine) + 1]
                own = (s.family == family) & (s.accuracy >= queue.min_accuracy[head])
                slack_s = queue.deadline_s[head] - now_s
                fits = own[:, None] & (table_s <= slack_s)
                if not fits.any():
                    continue
                at = int(np.where(fits, table_s, -1.0).argmax())
                variant, size = at // table_s.shape[1], at % table_s.shape[1] + 1
                good = [k for k in mine if queue.min_accuracy[k] <= s.accuracy[variant]]
                chosen = [head, *(k for k in good if k != head)][:size]
                dispatches.append(Dispatch(server, variant, np.array(chosen)))
                left = [k for k in left if k not in set(chosen)]
                break
        return Decision(tuple(dispatches), self._hopeless(left, now_s, queue, servers))

    def _hopeless(self, left: list[int], now_s: float, queue: Queue, servers: Servers) -> IntArray:
        s = self.service
        fastest_s = self.planned_s[servers.up, :, 1].min(axis=0, initial=np.inf)
        late = []
        for k in left:
            own = (s.family == queue.family[k]) & (s.accuracy >= queue.min_accuracy[k])
            if now_s + fastest_s[own].min(initial=np.inf) > queue.deadline_s[k]:
                late.append(k)
        return np.array(late) if late else NONE
