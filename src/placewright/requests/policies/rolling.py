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
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.requests.policies.edf import grouped
from placewright.requests.policies.horizon import (
    hopeless,
    plan_queue,
    price_now,
    starting_now,
    wait_until,
)
from placewright.requests.policies.load import Load
from placewright.requests.policies.specification import Specification
from placewright.requests.policy import Decision, Dispatch
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service

SURCHARGES = (0.0, 0.1, 0.5, 3.0)
"""Accuracy that a mean batch of one costs on top, one after another, while somebody is left out:
the last one buys the fastest variants."""

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
        self._scratch(PLANNED)
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        s = self.service = service
        self.planned_s = s.planned_s(self.options.quantile)
        # Of any size: a larger batch may take less, and what it answers must not be refused too.
        self.least_s = self.planned_s[:, :, 1:].min(axis=2)
        flat = self.planned_s.reshape(s.servers, -1)
        _, first, kind = np.unique(flat, axis=0, return_index=True, return_inverse=True)
        self.kind = kind.reshape(-1).astype(np.int64)
        self.limited = bool((s.memory_bytes.sum() > s.server_memory_bytes).any())
        self.family, self.accuracy = s.family.copy(), s.accuracy.copy()
        self.load_s, self.sizes = s.load_s.copy(), _sizes(s.max_batch)
        servers = np.bincount(self.kind, minlength=len(first)).astype(np.float64)
        # Means: what is planned for is needed seldom, and would make time seem scarcer than it is.
        self.load.revise(s.planned_s(0.0)[first], servers, self.family, self.accuracy)
        self.end_s, self.fastest_s = np.zeros(s.servers), np.zeros(s.variants)
        self.last = np.zeros(s.families, dtype=np.int64)
        self.candidate = np.zeros(s.servers, dtype=np.int64)
        self.members, self.picked = np.zeros((2, s.max_batch + 1), dtype=np.int64)
        runs = np.isfinite(self.planned_s[:, :, 1])
        total_s = self.planned_s[:, :, 1].sum(axis=1, where=runs)
        # A server that runs nothing costs nothing more: no plan uses it.
        self.surcharge = np.divide(
            runs.sum(axis=1), total_s, out=np.zeros(s.servers), where=total_s > 0
        )
        self.free_s, self.price = np.zeros(s.servers), np.zeros(s.servers)
        self.most = max(PLANNED, 4 * s.servers)

    def _scratch(self, size: int) -> None:
        self.size = size
        self.follower, self.found = np.zeros((2, size), dtype=np.int64)
        self.plans = [
            (np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64), np.zeros(size))
            for _ in range(2)
        ]

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Plan what waits; start what is planned for now."""
        self.load.observe(now_s, queue)
        order = queue.by_deadline
        if len(order) > self.size:
            self._scratch(2 * len(order))
        count = min(len(order), self.most)
        factor, pressure = self.options.price * self.load.trim, self.load.pressure(queue.count)
        free_s, price = self.free_s, self.price
        price_now(
            now_s,
            servers.busy,
            servers.up,
            servers.free_s,
            free_s,
            self.kind,
            self.load.prices,
            factor,
            pressure,
            price,
        )
        # Two sets of arrays in turn: the best plan so far is kept while the next is written.
        value, kept, other = -np.inf, self.plans[0], self.plans[1]
        lost = True
        for scale in SURCHARGES:
            made, left_out = plan_queue(
                now_s,
                order,
                count,
                queue.family,
                queue.deadline_s,
                queue.min_accuracy,
                free_s,
                self.kind,
                servers.resident,
                self.limited,
                self.planned_s,
                self.load_s,
                self.family,
                self.accuracy,
                price,
                self.options.price,
                self.options.wait / len(self.kind),
                self.surcharge,
                scale,
                self.sizes,
                self.end_s,
                self.follower,
                self.last,
                self.candidate,
                self.members,
                self.picked,
                *other,
            )
            if made > value:
                value, kept, other, lost = made, other, kept, left_out > 0
            if not left_out:
                break
        starting = starting_now(now_s, count, *kept, servers.busy, self.found)
        dispatches = grouped(order, self.found[:starting], kept[0], kept[1])
        wake_s = np.inf
        if self.options.hold:
            dispatches, wake_s = self._held(now_s, dispatches, queue, price)
        for batch in dispatches:
            self.load.used_s += self.planned_s[batch.server, batch.variant, len(batch.slots)]
        refused = self._refused(now_s, queue, servers) if lost else order[:0]
        return Decision(dispatches, refused, wake_s)

    def _held(
        self, now_s: float, dispatches: tuple[Dispatch, ...], queue: Queue, price: FloatArray
    ) -> tuple[tuple[Dispatch, ...], float]:
        """Batches that start now, and when to decide about the others again.

        A batch waits where a larger one costs enough less for each request, the server's idle time
        included, and the first deadline leaves half as much again as it takes at the recent rate.
        """
        kept, wake_s = [], np.inf
        for batch in dispatches:
            until_s = self._worth_waiting(now_s, batch, queue, float(price[batch.server]))
            if until_s > now_s:
                wake_s = min(wake_s, until_s)
            else:
                kept.append(batch)
        return tuple(kept), wake_s

    def _worth_waiting(self, now_s: float, batch: Dispatch, queue: Queue, price: float) -> float:
        rate = self.load.rate_of(int(self.family[batch.variant]))
        return wait_until(
            now_s,
            len(batch.slots),
            float(queue.deadline_s[batch.slots[0]]),
            self.planned_s,
            batch.server,
            batch.variant,
            price,
            rate,
        )

    def _refused(self, now_s: float, queue: Queue, servers: Servers) -> IntArray:
        found = hopeless(
            now_s,
            queue.by_deadline,
            queue.family,
            queue.deadline_s,
            queue.min_accuracy,
            servers.up,
            self.least_s,
            self.family,
            self.accuracy,
            self.fastest_s,
            self.found,
        )
        return self.found[:found].copy()


def _sizes(largest: int) -> IntArray:
    """Batch sizes that are tried: every one up to 8, then about a fifth apart, and the largest."""
    sizes = [1]
    while sizes[-1] < largest:
        sizes.append(min(largest, max(sizes[-1] + 1, int(sizes[-1] * 1.2))))
    return np.array(sizes)
