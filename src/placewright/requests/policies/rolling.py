"""Rolling horizon: plan the waiting requests over all servers, start what is due now.

At each decision the waiting requests are planned in order of deadlines. The first one not planned
yet forms a batch with the next ones of its family; of all servers, variants and sizes that keep its
deadline it takes the one with the most accuracy after paying for machine time,

    accuracy - price[server] x seconds / size,

on the server's planned end, be that now or later. The prices are those of the fluid program of
recent load (see `placewright.requests.policies.load`). If somebody is left out, the queue is
planned again at higher prices, which buy faster variants, and the plan of highest value is kept.
Only batches that start now on an idle server are dispatched; everything else is planned again at
the next event. Requests that no server could answer in time any more are refused.

A decision takes O(planned x (servers + kinds x variants x sizes)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InputError
from placewright.requests.policies.edf import grouped
from placewright.requests.policies.horizon import (
    hopeless,
    new_horizon,
    plan_queue,
    wait_until,
)
from placewright.requests.policies.load import Load
from placewright.requests.policy import Decision, Dispatch, Specification
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service

PLANNED = 64
"""Waiting requests that are planned at least; four for each server if that is more."""


@final
@dataclass(frozen=True, slots=True)
class Rolling(Specification):
    """Rolling horizon with prices of machine time, late binding and batching.

    Parameters
    ----------
    price
        The knob: multiplies the price of machine time. Below 1 buys accuracy and risks deadlines;
        above 1 the other way round.
    reserve
        Prices let n servers be used up to ``1 - reserve / n``; what is left absorbs bursts.
    quantile
        Standard deviations of noise that are planned for.
    memory_s
        Over which the rate of arrivals is averaged.
    wait
        Accuracy, times the number of servers, that a batch costs which ends as late as its first
        request allows. Above 0 it prefers idle servers, since requests that come later may push
        back what is planned, and short batches, which later ones wait less for.
    hold
        Whether a batch may wait on an idle server for more requests. Few servers with short and
        long deadlines keep more of the short ones without.
    """

    price: float = 1.0
    reserve: float = 1.2
    quantile: float = 1.0
    memory_s: float = 1.0
    wait: float = 0.0
    hold: bool = True
    policy: ClassVar[str] = "rolling"

    def start(self, service: Service, seed: int = 0) -> RollingHorizon:
        """A policy object for one stream."""
        for key in ("price", "memory_s"):
            if not 0 < getattr(self, key) < np.inf:
                raise InputError(f"{key} must be above 0", where="rolling")
        for key in ("reserve", "wait"):
            if not 0 <= getattr(self, key) < np.inf:
                raise InputError(f"{key} must be a number >= 0", where="rolling")
        return RollingHorizon(service, self)


@final
class RollingHorizon:
    """The state of `Rolling`: estimates of the load, prices, and scratch arrays."""

    eager: ClassVar[bool] = False

    def __init__(self, service: Service, options: Rolling) -> None:
        self.options = options
        self.load = Load(options.reserve, options.memory_s)
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service, self.horizon = service, new_horizon(service, self.options, PLANNED)
        self.tables, self.most = self.horizon.tables, max(PLANNED, 4 * service.servers)
        _, first, count = np.unique(self.tables.kind, return_index=True, return_counts=True)
        # Means: what is planned for is needed seldom, and would make time seem scarcer than it is.
        mean_s = service.planned_s(0.0)[first]
        servers = count.astype(np.float64)
        self.load.revise(mean_s, servers, self.tables.family, self.tables.accuracy)

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Plan what waits; start what is planned for now."""
        self.load.observe(now_s, queue)
        order = queue.by_deadline
        if len(order) > len(self.horizon.found):
            self.horizon = new_horizon(self.service, self.options, 2 * len(order))
        h = self.horizon
        starting, lost = plan_queue(
            now_s,
            order[: self.most],
            queue.requests,
            servers,
            h,
            self.load.prices,
            self.options.price * self.load.trim,
            self.load.pressure(queue.count),
        )
        dispatches = grouped(order, h.found[:starting], h.best.server_of, h.best.variant_of)
        wake_s = np.inf
        if self.options.hold:
            dispatches, wake_s = self._held(now_s, dispatches, queue)
        for batch in dispatches:
            took_s = self.tables.planned_s[batch.server, batch.variant, len(batch.slots)]
            self.load.used_s += took_s
        refused = order[:0]
        if lost:
            gone = hopeless(now_s, order, queue.requests, servers, h)
            refused = h.found[:gone].copy()
        return Decision(dispatches, refused, wake_s)

    def _held(
        self, now_s: float, dispatches: tuple[Dispatch, ...], queue: Queue
    ) -> tuple[tuple[Dispatch, ...], float]:
        """Batches that start now, and when to decide about the others again.

        A batch waits where a larger one costs enough less for each request, the server's idle time
        included, and the first deadline leaves half as much again as it takes at the recent rate.
        """
        kept, wake_s = [], np.inf
        for batch in dispatches:
            until_s = self._worth_waiting(now_s, batch, queue)
            if until_s > now_s:
                wake_s = min(wake_s, until_s)
            else:
                kept.append(batch)
        return tuple(kept), wake_s

    def _worth_waiting(self, now_s: float, batch: Dispatch, queue: Queue) -> float:
        return wait_until(
            now_s,
            len(batch.slots),
            float(queue.deadline_s[batch.slots[0]]),
            self.tables.planned_s,
            batch.server,
            batch.variant,
            float(self.horizon.price[batch.server]),
            self.load.rate_of(int(self.tables.family[batch.variant])),
        )
