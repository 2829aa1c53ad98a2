"""Rolling horizon: plan the waiting requests over all servers, start what is due now.

At each decision the waiting requests are planned in order of deadlines. The first one not planned
yet forms a batch with the next ones of its family; of all servers, variants and sizes that keep its
deadline it takes the one with the most accuracy after paying for machine time,

    accuracy - price[server] x seconds / size,

on the server's planned end, be that now or later. The prices are those of the fluid program of
recent load (see below). If somebody is left out, the queue is
planned again at higher prices, which buy faster variants, and the plan of highest value is kept.
Only batches that start now on an idle server are dispatched; everything else is planned again at
the next event. Requests that no server could answer in time any more are refused.

A decision takes O(planned x (servers + kinds x variants x sizes)).

What a policy has seen of the load: recent requests, their rate, and prices of machine time.

The prices are the dual of the fluid program of the load that was seen of late. If requests of the
recent kind went on at the recent rate, and work could be split at will, a second of server kind k
would be worth ``price[k]`` accuracies: the multiplier of its capacity in

    maximise   sum of accuracy x
    subject to each request served at most once; seconds on k <= servers of k x utilisation[k]

Each recent request buys the variant with the most accuracy above its price, and the price of a
kind rises while more is bought than there is (multiplicative weights). The prices start from where
they were, so that a few rounds after some arrivals follow the load.

Time is kept free for what comes in bursts, as long as it would only buy more accurate variants: at
prices at which nobody pays for those, free time would cost requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached, njit_inline, njit_no_refcount
from placewright.requests.policies.edf import grouped
from placewright.requests.policies.horizon import hopeless, new_horizon, plan_queue, wait_until
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
        Over which the rate of arrivals is averaged. 0: over the mean deadline, in which a burst
        becomes a queue, and over 32 requests at least.
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
    memory_s: float = 0.0
    wait: float = 0.0
    hold: bool = True
    policy: ClassVar[str] = "rolling"

    def start(self, service: Service, seed: int = 0) -> RollingHorizon:
        """A policy object for one stream."""
        if not 0 < self.price < np.inf:
            raise InputError("price must be above 0", where="rolling")
        for key in ("reserve", "wait", "memory_s"):
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
            self.options.price,
            self.load.pressure(queue.count, int(np.count_nonzero(servers.up & ~servers.busy))),
        )
        dispatches = grouped(order, h.found[:starting], h.best.server_of, h.best.variant_of)
        wake_s = np.inf
        if self.options.hold:
            dispatches, wake_s = self._held(now_s, dispatches, queue, servers)
        refused = order[:0]
        if lost:
            gone = hopeless(now_s, order, queue.requests, servers, h)
            refused = h.found[:gone].copy()
        return Decision(dispatches, refused, wake_s)

    def _held(
        self, now_s: float, dispatches: tuple[Dispatch, ...], queue: Queue, servers: Servers
    ) -> tuple[tuple[Dispatch, ...], float]:
        """Batches that start now, and when to decide about the others again.

        A batch waits where a larger one costs enough less for each request, the server's idle time
        included, and the first deadline leaves half as much again as it takes at the recent rate.
        """
        kept, wake_s = [], np.inf
        for batch in dispatches:
            until_s = self._worth_waiting(now_s, batch, queue, servers)
            if until_s > now_s:
                wake_s = min(wake_s, until_s)
            else:
                kept.append(batch)
        return tuple(kept), wake_s

    def _worth_waiting(
        self, now_s: float, batch: Dispatch, queue: Queue, servers: Servers
    ) -> float:
        t, i, v = self.tables, batch.server, batch.variant
        return wait_until(
            now_s,
            len(batch.slots),
            float(queue.deadline_s[batch.slots[0]]),
            t.planned_s[i, v],
            0.0 if servers.resident[i, v] else float(t.load_s[i, v]),
            float(self.horizon.price[i]),
            self.load.rate_of(int(self.tables.family[batch.variant])),
        )


SAMPLES = 128
"""Recent requests that stand for those to come."""

BUCKETS = 12
"""Ranges of deadlines within which a request costs the same."""

QUANTILES = np.arange(BUCKETS) / BUCKETS
"""Where those ranges begin."""

FIRST, EVERY, COUNTED = 8, 16, 32
"""Arrivals before prices are set for the first time, between two changes, and over which the rate
is averaged at least."""

PRESSURE, WAITING = 10.0, 6.0
"""Growth of the logarithm of prices with the share of their deadlines that requests wait, and the
share from which on they grow times the servers: few servers make requests wait without backlog."""

MOST_PRESSURE = 4.0
"""Of that logarithm."""

FIRST_ROUNDS, ROUNDS, STEP = 300, 5, 0.1


class Load:
    """Estimates rate and kinds of requests from those that arrived, and prices machine time.

    Attributes
    ----------
    prices
        Shape (kinds of server,): accuracies per second.
    rate_per_s
        Requests per second, an exponential mean over about `memory_s`, or over deadlines (0).
    """

    def __init__(self, reserve: float, memory_s: float) -> None:
        self.reserve, self.memory_s = reserve, memory_s
        self.prices, self.rate_per_s = np.zeros(0), 0.0
        self.family = np.zeros(SAMPLES, dtype=np.int64)
        self.floor, self.deadline_s = np.zeros(SAMPLES), np.zeros(SAMPLES)
        self.sampled = self.seen = self.counted = self.updated = 0
        self.last_s, self.first_s = 0.0, math.nan
        self.mean_deadline_s = 0.0

    def revise(
        self, tables_s: FloatArray, servers: FloatArray, family: IntArray, accuracy: FloatArray
    ) -> None:
        """Use these tables; shape (kinds, variants, batch + 1)."""
        self.tables_s, self.servers = tables_s, servers
        # A request waits a batch's time / n for the next of n servers.
        n = float(servers.sum())
        # Written with the prices.
        self.utilisation, self.wait = np.ones(len(servers)), n / (n + 1.0)
        self.usual_wait = WAITING / n
        self.variant_family, self.accuracy = family, accuracy
        self.share = np.zeros(int(family.max()) + 1)
        if len(self.prices) != len(servers):
            self.prices, self.updated = np.ones(len(servers)), 0

    def rate_of(self, family: int) -> float:
        """Requests per second of a family."""
        live = min(self.sampled, SAMPLES)
        return self.rate_per_s * float(self.share[family]) if live else 0.0

    def pressure(self, waiting: int, idle: int = 0) -> float:
        """What multiplies the prices while more requests wait than usual, and than idle servers.

        Earliest deadline first has a second equilibrium: when everybody has waited long, only
        batches of one are still in time, which take so long for each request that the queue stays.
        Dearer machine time buys the variants and batches that lead out of it. By Little's law,
        requests that wait / (rate x mean deadline) is the share of a deadline spent waiting; where
        idle servers can take them all, they do not wait, however few are usual.
        """
        if waiting <= idle or self.mean_deadline_s * self.rate_per_s <= 0:
            return 1.0
        share = waiting / (self.rate_per_s * self.mean_deadline_s)
        excess = PRESSURE * max(0.0, share - self.usual_wait)
        return math.exp(min(excess, MOST_PRESSURE))

    def observe(self, now_s: float, queue: Queue) -> None:
        """Note what has arrived since the last call; now and then change the prices."""
        total = queue.total
        # Those of them that were dispatched without a decision are not seen; the others stand last
        # by arrival.
        new = min(total - self.seen, queue.count)
        if total == self.seen:
            return
        self.seen = total
        if math.isnan(self.first_s):
            self.first_s = self.last_s = now_s
        for slot in queue.by_arrival[queue.count - new :].tolist():
            k = self.sampled % SAMPLES
            self.family[k], self.floor[k] = queue.family[slot], queue.min_accuracy[slot]
            self.deadline_s[k] = queue.deadline_s[slot] - queue.arrival_s[slot]
            self.sampled += 1
        if self.updated == 0:
            if total >= FIRST and now_s > self.first_s:
                self.rate_per_s = total / (now_s - self.first_s)
                self._price(now_s, total, FIRST_ROUNDS)
        elif total - self.updated >= EVERY:
            span_s = max(now_s - self.last_s, 1e-9)
            # Before the memory has passed once, all that was seen counts alike.
            keep = math.exp(-span_s / max(1e-9, min(self._memory_s(), now_s - self.first_s)))
            recent = (total - self.counted) / span_s
            self.rate_per_s = keep * self.rate_per_s + (1 - keep) * recent
            self._price(now_s, total, ROUNDS)

    def _memory_s(self) -> float:
        if self.memory_s:
            return self.memory_s
        return max(self.mean_deadline_s, COUNTED / max(self.rate_per_s, 1e-9))

    def _price(self, now_s: float, total: int, rounds: int) -> None:
        self.last_s, self.counted, self.updated = now_s, total, total
        live = min(self.sampled, SAMPLES)
        self.mean_deadline_s = float(self.deadline_s[:live].mean())
        counts = np.bincount(self.family[:live], minlength=len(self.share))
        self.share = counts / live
        edges, bucket = _buckets(self.deadline_s[:live])
        cost_s = seconds_per_request(self.tables_s, edges, self.wait)
        market = Market(
            prices=self.prices,
            servers=self.servers,
            dear=_dear(cost_s[-1], self.variant_family, self.accuracy),
            utilisation=self.utilisation,
            bought_s=np.zeros(len(self.prices)),
            family=self.variant_family,
            accuracy=self.accuracy,
            cost_s=cost_s,
            request_family=self.family[:live],
            request_floor=self.floor[:live],
            request_bucket=bucket,
            rate_per_s=self.rate_per_s,
            kept_free=float(self.reserve / self.servers.sum()),
        )
        adjust_prices(market, rounds, STEP)


def _dear(cost_s: FloatArray, family: IntArray, accuracy: FloatArray) -> FloatArray:
    """Shape (kinds,): price above which nobody pays for more than a family's cheapest variant."""
    dear = np.full(len(cost_s), 1e-3)
    for k, seconds in enumerate(cost_s):
        for f in range(int(family.max()) + 1):
            own = np.flatnonzero((family == f) & np.isfinite(seconds))
            if len(own):
                cheapest = own[seconds[own].argmin()]
                more_s, better = (
                    seconds[own] - seconds[cheapest],
                    accuracy[own] - accuracy[cheapest],
                )
                gains = better[more_s > 0] / more_s[more_s > 0]
                dear[k] = max(dear[k], gains.max(initial=0.0))
    return dear


def _buckets(deadline_s: FloatArray) -> tuple[FloatArray, IntArray]:
    """Lower edges of deadline ranges, and the range of each request."""
    # Equal deadlines give equal edges, which are one.
    edges = np.unique(quantiles(deadline_s, QUANTILES))
    return edges, np.maximum(np.searchsorted(edges, deadline_s, side="right") - 1, 0)


def quantiles(values: FloatArray, shares: FloatArray) -> FloatArray:
    """``np.quantile`` to the last bit, in a third of its time."""
    ordered = np.sort(values)
    at = (len(ordered) - 1) * shares
    below = np.floor(at)
    low = ordered[below.astype(np.int64)]
    high = ordered[np.minimum(below.astype(np.int64) + 1, len(ordered) - 1)]
    share, step = at - below, high - low
    result: FloatArray = np.where(share >= 0.5, high - step * (1 - share), low + step * share)
    return result


@njit_cached
def seconds_per_request(tables_s: FloatArray, deadline_s: FloatArray, wait: float) -> FloatArray:
    """Shape (deadlines, kinds, variants): least seconds of a batch for each of its requests.

    Of batches that take at most the share `wait` of the deadline, and of requests alone that keep
    it; ``inf`` where there is none.
    """
    kinds, variants, sizes = tables_s.shape
    cost = np.full((len(deadline_s), kinds, variants), np.inf)
    for d in range(len(deadline_s)):
        limit_s = deadline_s[d]
        for k in range(kinds):
            for v in range(variants):
                least = np.inf
                for b in range(1, sizes):
                    took_s = tables_s[k, v, b]
                    if took_s <= limit_s * wait or (b == 1 and took_s <= limit_s):
                        least = min(least, took_s / b)
                cost[d, k, v] = least
    return cost


LEAST_FREE = 0.02
"""Share of time kept free at any price, unless less is asked for."""


class Market(NamedTuple):
    """Servers, variants, recent requests and prices.

    Attributes
    ----------
    prices, servers
        Shape (kinds,): accuracies per second; how many servers, above 0.
    dear
        Shape (kinds,): from half of this price on less time is kept free, above it the least.
    utilisation, bought_s
        Shape (kinds,): written: share of time that is sold; scratch.
    family, accuracy
        Shape (variants,).
    cost_s
        Shape (deadline buckets, kinds, variants): seconds per request; ``inf``: too late.
    request_family, request_floor, request_bucket
        Shape (samples,): family, minimum accuracy and deadline bucket of each.
    rate_per_s
        Of requests.
    kept_free
        Share of the servers' time.
    """

    prices: FloatArray
    servers: FloatArray
    dear: FloatArray
    utilisation: FloatArray
    bought_s: FloatArray
    family: IntArray
    accuracy: FloatArray
    cost_s: FloatArray
    request_family: IntArray
    request_floor: FloatArray
    request_bucket: IntArray
    rate_per_s: float
    kept_free: float


@njit_no_refcount
def adjust_prices(m: Market, rounds: int, rate: float) -> None:
    """Change ``m.prices`` in place, `rounds` times through the samples."""
    samples, kinds = len(m.request_family), len(m.prices)
    if samples == 0:
        return
    # Requests that are alike buy the same kind, in turn each of those that are as dear: with all
    # samples in one step its price would fall in most steps, and rise too little in its own.
    step = max(1, samples // kinds**2)
    for _ in range(rounds):
        for k in range(kinds):
            free = m.kept_free * min(1.0, 2.0 - 2.0 * m.prices[k] / m.dear[k])
            m.utilisation[k] = 1.0 - max(min(free, 0.95), min(m.kept_free, LEAST_FREE))
        for first in range(0, samples, step):
            last = min(samples, first + step)
            m.bought_s[:] = 0.0
            for q in range(first, last):
                _buy(m, q)
            share = (last - first) / samples
            for k in range(kinds):
                sold_s = m.servers[k] * m.utilisation[k]
                load = m.bought_s[k] * m.rate_per_s / (last - first) / sold_s
                # Multiplicative weights: up while more is bought than there is.
                change = rate * share * max(-1.0, min(2.0 * kinds - 1.0, load - 1.0))
                m.prices[k] = max(1e-3, min(1e4, m.prices[k] * np.exp(change)))


@njit_inline
def _buy(m: Market, q: int) -> None:
    """Let sample q buy the most accuracy above its price, if any."""
    best, chosen, seconds = 0.0, -1, 0.0
    for v in range(len(m.family)):
        if m.family[v] != m.request_family[q] or m.accuracy[v] < m.request_floor[q]:
            continue
        for k in range(len(m.prices)):
            cost = m.cost_s[m.request_bucket[q], k, v]
            gain = m.accuracy[v] - m.prices[k] * cost
            if gain > best:
                best, chosen, seconds = gain, k, cost
    if chosen >= 0:
        m.bought_s[chosen] += seconds
