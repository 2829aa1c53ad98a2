"""Lagrangian bound: requests have prices, and each server has its best schedule of batches.

Lambda_i >= 0 is the price of request i. For any prices and any policy the sum of accuracies is at
most

    sum of lambda_i + sum over servers of V[server],

where V[server] is the most that one server alone can earn if each request in each of its batches
earns its accuracy, if it is in time, less its price: a request is in one batch at most, so that
sum of lambda_i x (1 - batches that hold i) is not negative, and what is left falls apart into
servers. V is found by dynamic programming over cells of time, from the last to the first:

    V(t) = max(V(t + 1), max over variants and sizes b of the b best requests that wait at t
                         + expected V(end of the batch)).

Batches are whole here, of requests that have all arrived and whose deadlines all allow it; one runs
at a time. Subgradient steps choose the prices; any of them prove a bound.

Nothing is counted that would not hold. A server that is free within cell t may start at the cell's
beginning, with all requests that arrive until its end; a batch ends in the cell of its time after
that, rounded down; V never grows with t, so that each of these can only add. A batch of b costs the
least time of any batch of b or more, for others may fill it. Loading of variants and sending of
inputs cost nothing. With noise the bound is on the expectation: a policy does not know the noise of
a batch before it ends, whose distribution then enters both terms of V. Arrivals are all known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.numerics.njit import njit_inline, njit_no_refcount
from placewright.requests.problem import RequestProblem

CELLS = 4
"""Cells in the shortest batch: more are tighter and take longer."""

ITERATIONS = 160
"""Subgradient steps at most."""

MOST_WORK = 3e8
"""Batches times requests that one step may look at, which takes about half a second; larger
problems have the fluid bound only."""

MOST_CELLS = 20_000_000
"""Three arrays have a number for each; a day of requests to a server of milliseconds has more."""

FIRST_PRICE = 0.9
"""Share of its best accuracy that a request costs at first."""

AIM, STALLED, SMALLER = 0.06, 5, 0.6
"""A step aims this share below the best bound; after so many failures its length shrinks."""

STEPS = 600
"""Steps of the table of the normal distribution, which is rounded up."""

ROUNDING = 1e-9


class Instance(NamedTuple):
    """A problem in cells of time, and arrays to compute in.

    Attributes
    ----------
    cell_s
        Seconds of a cell.
    lows, highs
        By cell: requests that may wait in it are among these.
    due_s, floor, request_family
        Of each request: its deadline, minimum accuracy and family.
    family, accuracy
        By variant.
    link_s
        By kind: the round trip, which has no noise.
    latency_s
        Shape (kinds, variants, batch + 1): least seconds of a batch of so many or more, beside it.
    first, start, weight
        Shape (kinds, variants, batch + 2): the cells that a batch takes are ``first + j`` with
        probability ``weight[start + j]`` up to the next batch's `start`.
    servers
        By kind: how many.
    sigma, deviations, normal
        Of the noise: its standard deviation, how many of them it has at most, and the table of the
        normal distribution.
    best, chosen, reached
        By cell, with room for the longest batch: V; the batch; its probability.
    value, who
        Of the requests of a batch, the most valuable first.
    served
        How often each request is expected to be in a batch.
    """

    cell_s: float
    lows: IntArray
    highs: IntArray
    due_s: FloatArray
    floor: FloatArray
    request_family: IntArray
    family: IntArray
    accuracy: FloatArray
    link_s: FloatArray
    latency_s: FloatArray
    first: IntArray
    start: IntArray
    weight: FloatArray
    servers: IntArray
    sigma: float
    deviations: float
    normal: FloatArray
    best: FloatArray
    chosen: IntArray
    reached: FloatArray
    value: FloatArray
    who: IntArray
    served: FloatArray


@njit_inline
def _fill_batch(p: Instance, price: FloatArray, t: int, k: int, v: int, size: int) -> int:
    """Write the `size` requests of most value above 0 in a batch that starts in t; how many."""
    begun_s, latency_s = t * p.cell_s + p.link_s[k], p.latency_s[k, v, size]
    accuracy = p.accuracy[v]
    least_s = latency_s * (1.0 - p.deviations * p.sigma) - ROUNDING * (p.link_s[k] + latency_s)
    count = 0
    for i in range(p.lows[t], p.highs[t]):
        if p.request_family[i] != p.family[v] or p.floor[i] > accuracy or price[i] >= accuracy:
            continue
        left_s = p.due_s[i] - begun_s
        if left_s < least_s:
            continue
        # How much slower than its table the batch may be; with noise, the chance that it is not.
        x = accuracy * _chance(p, left_s / latency_s - 1.0) - price[i]
        if x <= 0.0 or (count == size and x <= p.value[count - 1]):
            continue
        # Insertion into a short list by value; of a full one the last falls out.
        j = min(count, size - 1)
        while j > 0 and p.value[j - 1] < x:
            p.value[j], p.who[j] = p.value[j - 1], p.who[j - 1]
            j -= 1
        p.value[j], p.who[j] = x, i
        count = min(count + 1, size)
    return count


@njit_inline
def _chance(p: Instance, ratio: float) -> float:
    """That a batch is at most so much slower than its table, relative to that."""
    if p.sigma == 0.0 or ratio >= p.deviations * p.sigma:
        return 1.0
    # The table holds the upper end of each step, so that the chance is never too small.
    at = int((ratio / p.sigma + p.deviations) * STEPS / (2.0 * p.deviations))
    chance: float = p.normal[min(max(at, 0), STEPS)]
    return chance


@njit_inline
def _best_batch(p: Instance, price: FloatArray, t: int, k: int) -> None:
    """Write V of cell t on a server of kind k, and the batch that starts there, -1: none."""
    _, variants, sizes = p.latency_s.shape
    most, batch = p.best[t + 1], -1
    for v in range(variants):
        for b in range(1, sizes):
            if p.latency_s[k, v, b] == np.inf:
                break
            if _fill_batch(p, price, t, k, v, b) < b:
                break  # smaller batches, which take no longer, have them all
            gain = 0.0
            for j in range(b):
                gain += p.value[j]
            at, end = t + p.first[k, v, b], p.start[k, v, b]
            # V never grows with t, so its earliest end bounds the expectation.
            if gain + p.best[at] <= most:
                continue
            for j in range(p.start[k, v, b + 1] - end):
                gain += p.weight[end + j] * p.best[at + j]
            if gain > most:
                most, batch = gain, v * sizes + b
    p.best[t], p.chosen[t] = most, batch


@njit_inline
def _serve(p: Instance, price: FloatArray, k: int) -> None:
    """Add what the best schedule of a server of kind k serves.

    Forwards: with what probability it is free in each cell; so much of each batch that it starts
    is what its requests are served.
    """
    sizes, cells = p.latency_s.shape[2], len(p.chosen)
    for t in range(len(p.reached)):
        p.reached[t] = 0.0
    p.reached[0] = 1.0
    for t in range(cells):
        if p.reached[t] <= 0.0:
            continue
        if p.chosen[t] < 0:
            p.reached[t + 1] += p.reached[t]
            continue
        v, b = p.chosen[t] // sizes, p.chosen[t] % sizes
        for j in range(_fill_batch(p, price, t, k, v, b)):
            p.served[p.who[j]] += p.servers[k] * p.reached[t]
        at, end = t + p.first[k, v, b], p.start[k, v, b]
        for j in range(p.start[k, v, b + 1] - end):
            p.reached[at + j] += p.reached[t] * p.weight[end + j]


@njit_no_refcount
def _relaxed(p: Instance, price: FloatArray) -> float:
    """Sum of V over servers; writes how often each request is expected to be in a batch."""
    total = 0.0
    for i in range(len(p.served)):
        p.served[i] = 0.0
    for k in range(len(p.servers)):
        for t in range(len(p.chosen), len(p.best)):
            p.best[t] = 0.0
        for t in range(len(p.chosen) - 1, -1, -1):
            _best_batch(p, price, t, k)
        total += p.servers[k] * p.best[0]
        _serve(p, price, k)
    return total


class _Relaxation:
    """Cells, kinds of servers and the work of one step of a problem."""

    def __init__(self, problem: RequestProblem) -> None:
        self.problem = problem
        s, stream = problem.service, problem.stream
        table_s = s.latency_s.copy()
        table_s[:, :, 0] = 0.0
        # From the largest size downwards: least time of a batch of b or more; 0:-1 leaves size 0
        # out.
        table_s[:, :, 1:] = np.minimum.accumulate(table_s[:, :, :0:-1], axis=2)[:, :, ::-1]
        flat = np.column_stack([s.round_trip_s, table_s.reshape(s.servers, -1)])
        _, kind, servers = np.unique(flat, axis=0, return_index=True, return_counts=True)
        self.link_s: FloatArray = s.round_trip_s[kind]
        self.latency_s = np.ascontiguousarray(table_s[kind])
        self.servers: IntArray = servers.astype(np.int64)
        self.sigma, self.wide, self.due_s = s.noise, s.deviations * s.noise, stream.due_s
        runs = np.isfinite(self.latency_s)
        runs[:, :, 0] = False
        least_s, most_s = (
            self.link_s[:, None, None] + self.latency_s * factor
            for factor in (1 - self.wide, 1 + self.wide)
        )
        self.cell_s = float(least_s[runs].min()) / CELLS
        longest_s = float(self.due_s.max()) + float(most_s[runs].max())
        self.work = math.inf
        if not longest_s < MOST_CELLS * self.cell_s:
            return
        self.cells = int(self.due_s.max() / self.cell_s) + 1
        # Requests are sorted by arrival. `highs` is exact; deadlines are not sorted, and their
        # running maximum gives the first request that may still be in time.
        edges_s = np.arange(self.cells) * self.cell_s
        self.highs = np.searchsorted(stream.arrival_s, edges_s + self.cell_s).astype(np.int64)
        self.lows = np.searchsorted(np.maximum.accumulate(self.due_s), edges_s).astype(np.int64)
        waiting = float((self.highs - self.lows).mean())
        # No batch is larger than the requests that wait.
        sizes = np.minimum(runs.sum(axis=(0, 1)).sum(), runs.shape[0] * runs.shape[1] * waiting)
        self.work = self.cells * float(sizes) * waiting

    def instance(self) -> Instance:
        """With the distribution of the cells that each batch takes."""
        kinds, variants, sizes = self.latency_s.shape
        first, start = np.zeros((2, kinds, variants, sizes + 1), dtype=np.int64)
        parts, total = [], 0
        for k, v, b in np.ndindex(kinds, variants, sizes + 1):
            start[k, v, b] = total
            if 0 < b < sizes and math.isfinite(self.latency_s[k, v, b]):
                link_s, latency_s = float(self.link_s[k]), float(self.latency_s[k, v, b])
                first[k, v, b], part = self._cells(link_s, latency_s)
                parts.append(part)
                total += len(part)
        longest = int(first.max()) + max(len(part) for part in parts)
        most = self.problem.service.deviations
        grid = most * (2 * (np.arange(STEPS + 1) + 1) / STEPS - 1)
        best, reached = np.zeros((2, self.cells + longest + 1))
        service, stream = self.problem.service, self.problem.stream
        return Instance(
            cell_s=self.cell_s,
            lows=self.lows,
            highs=self.highs,
            due_s=self.due_s,
            floor=thawed(stream.min_accuracy),
            request_family=thawed(stream.family),
            family=thawed(service.family),
            accuracy=thawed(service.accuracy),
            link_s=self.link_s,
            latency_s=self.latency_s,
            first=first,
            start=start,
            weight=np.concatenate(parts),
            servers=self.servers,
            sigma=float(service.noise),
            deviations=float(most),
            normal=np.array([_normal(x) for x in grid.tolist()]),
            best=best,
            chosen=np.zeros(self.cells, dtype=np.int64),
            reached=reached,
            value=np.zeros(sizes),
            who=np.zeros(sizes, dtype=np.int64),
            served=np.zeros(len(self.due_s)),
        )

    def _cells(self, link_s: float, latency_s: float) -> tuple[int, FloatArray]:
        """The least number of cells, rounded down, and the probabilities of it and the next."""
        low, high = (
            int((link_s + latency_s * factor) / self.cell_s + ROUNDING)
            for factor in (1 - self.wide, 1 + self.wide)
        )
        if low == high:
            return low, np.ones(1)
        # Noise is cut off at its limits: what lies beyond belongs to the first and the last cell.
        edges = (np.arange(low + 1, high + 1) * self.cell_s - link_s) / latency_s - 1.0
        below = [_normal(x / self.sigma) for x in edges.tolist()]
        return low, np.diff(np.array([0.0, *below, 1.0]))


def _normal(x: float) -> float:
    """Share of the standard normal distribution that is at most x."""
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


def lagrangian_bounds(
    problem: RequestProblem,
    alone: FloatArray,
    deadline_s: float = math.inf,
    iterations: int = ITERATIONS,
) -> Iterator[float]:
    """Upper bounds on the effective accuracy, each tighter; none where a step would take too long.

    `alone`: Shape (requests,): the best accuracy that an idle server gives each request.
    `deadline_s`: ``time.perf_counter()`` value after which no step begins.
    """
    relaxed = _Relaxation(problem)
    if relaxed.work > MOST_WORK or time.perf_counter() > deadline_s:
        return
    p = relaxed.instance()
    price = best_price = FIRST_PRICE * alone
    best, length, stalled, slope = math.inf, 1.0, 0, np.zeros(len(alone))
    for _ in range(iterations):
        bound = float(price.sum() + _relaxed(p, price))
        if bound < best:
            best, best_price, slope, stalled = bound, price, 1.0 - p.served, 0
            yield min(best, float(alone.sum())) / len(alone) * (1.0 + ROUNDING)
        else:
            stalled += 1
            if stalled >= STALLED:
                length, stalled, price = SMALLER * length, 0, best_price
        now = slope if price is best_price else 1.0 - p.served
        # Prices at 0 cannot fall: they must not shorten the step of the others.
        free = np.where((price <= 0.0) & (now > 0.0), 0.0, now)
        size = float(free @ free)
        if size == 0.0 or time.perf_counter() > deadline_s:
            break
        price = np.maximum(0.0, price - length * AIM * best / size * free)
