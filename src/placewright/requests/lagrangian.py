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

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_no_refcount
from placewright.requests.problem import LARGEST_FACTOR, RequestProblem

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


@njit_no_refcount
def _best(
    now_s: float,
    low: int,
    high: int,
    due_s: FloatArray,
    floor: FloatArray,
    family_of: IntArray,
    price: FloatArray,
    family: int,
    accuracy: float,
    latency_s: float,
    sigma: float,
    normal: FloatArray,
    size: int,
    value: FloatArray,
    who: IntArray,
) -> int:
    """Write the `size` requests of most value above 0 in a batch that starts now; how many."""
    count = 0
    for i in range(low, high):
        if family_of[i] != family or floor[i] > accuracy or price[i] >= accuracy:
            continue
        # How much slower than its table the batch may be; with noise, the chance that it is not.
        ratio = (due_s[i] - now_s) / latency_s - 1.0
        chance = 1.0
        if ratio < -LARGEST_FACTOR * sigma - ROUNDING:
            continue
        if sigma > 0.0 and ratio < LARGEST_FACTOR * sigma:
            # The table holds the upper end of each step, so that the chance is never too small.
            at = int((ratio / sigma + LARGEST_FACTOR) * STEPS / (2.0 * LARGEST_FACTOR))
            chance = normal[min(max(at, 0), STEPS)]
        x = accuracy * chance - price[i]
        if x <= 0.0 or (count == size and x <= value[count - 1]):
            continue
        # Insertion into a short list by value; of a full one the last falls out.
        j = min(count, size - 1)
        while j > 0 and value[j - 1] < x:
            value[j], who[j] = value[j - 1], who[j - 1]
            j -= 1
        value[j], who[j] = x, i
        count = min(count + 1, size)
    return count


@njit_no_refcount
def _relaxed(
    cells: int,
    cell_s: float,
    lows: IntArray,
    highs: IntArray,
    due_s: FloatArray,
    floor: FloatArray,
    family_of: IntArray,
    price: FloatArray,
    family: IntArray,
    accuracy: FloatArray,
    latency_s: FloatArray,
    first: IntArray,
    start: IntArray,
    weight: FloatArray,
    servers: IntArray,
    sigma: float,
    normal: FloatArray,
    best: FloatArray,
    chosen: IntArray,
    reached: FloatArray,
    value: FloatArray,
    who: IntArray,
    served: FloatArray,
) -> float:
    """Sum of V over servers; writes how often each request is expected to be in a batch.

    Parameters
    ----------
    lows, highs
        By cell: requests that may wait in it are among these.
    first, start, weight
        Shape (kinds, variants, batch + 1): the cells that a batch takes are ``first + j`` with
        probability ``weight[start + j]`` up to the next batch's `start`.
    servers
        By kind: how many.
    best, chosen, reached
        Scratch by cell, with room for the longest batch: V; the batch; its probability.
    """
    kinds, variants, sizes = latency_s.shape
    total = 0.0
    for i in range(len(served)):
        served[i] = 0.0
    for k in range(kinds):
        for t in range(cells, len(best)):
            best[t] = 0.0
        for t in range(cells - 1, -1, -1):
            most, batch = best[t + 1], -1
            for v in range(variants):
                for b in range(1, sizes):
                    if latency_s[k, v, b] == np.inf:
                        break
                    many = _best(
                        t * cell_s,
                        lows[t],
                        highs[t],
                        due_s,
                        floor,
                        family_of,
                        price,
                        family[v],
                        accuracy[v],
                        latency_s[k, v, b],
                        sigma,
                        normal,
                        b,
                        value,
                        who,
                    )
                    if many < b:
                        break  # smaller batches, which take no longer, have them all
                    gain = 0.0
                    for j in range(b):
                        gain += value[j]
                    at, end = t + first[k, v, b], start[k, v, b]
                    # V never grows with t, so its earliest end bounds the expectation.
                    if gain + best[at] <= most:
                        continue
                    for j in range(start[k, v, b + 1] - end):
                        gain += weight[end + j] * best[at + j]
                    if gain > most:
                        most, batch = gain, v * sizes + b
            best[t], chosen[t] = most, batch
        total += servers[k] * best[0]
        # Forwards: with what probability the best schedule is free in each cell; so much of each
        # batch that it starts is what its requests are served.
        for t in range(len(reached)):
            reached[t] = 0.0
        reached[0] = 1.0
        for t in range(cells):
            if reached[t] <= 0.0:
                continue
            if chosen[t] < 0:
                reached[t + 1] += reached[t]
                continue
            v, b = chosen[t] // sizes, chosen[t] % sizes
            many = _best(
                t * cell_s,
                lows[t],
                highs[t],
                due_s,
                floor,
                family_of,
                price,
                family[v],
                accuracy[v],
                latency_s[k, v, b],
                sigma,
                normal,
                b,
                value,
                who,
            )
            for j in range(many):
                served[who[j]] += servers[k] * reached[t]
            at, end = t + first[k, v, b], start[k, v, b]
            for j in range(start[k, v, b + 1] - end):
                reached[at + j] += reached[t] * weight[end + j]
    return total


class _Relaxation:
    """Arrays of one problem; calling it with prices gives the bound and its subgradient."""

    def __init__(self, problem: RequestProblem) -> None:
        s, stream = problem.service, problem.stream
        table_s = s.latency_s + s.round_trip_s[:, None, None]
        table_s[:, :, 0] = 0.0
        # From the largest size downwards: least time of a batch of b or more; 0:-1 leaves size 0
        # out.
        table_s[:, :, 1:] = np.minimum.accumulate(table_s[:, :, :0:-1], axis=2)[:, :, ::-1]
        flat = table_s.reshape(s.servers, -1)
        _, kind, servers = np.unique(flat, axis=0, return_index=True, return_counts=True)
        self.latency_s = np.ascontiguousarray(table_s[kind])
        self.servers: IntArray = servers.astype(np.int64)
        self.family, self.accuracy, self.sigma = s.family.copy(), s.accuracy.copy(), s.noise
        self.due_s, self.floor = stream.due_s.copy(), stream.min_accuracy.copy()
        self.family_of = stream.family.copy()
        runs = np.isfinite(self.latency_s)
        runs[:, :, 0] = False
        self.cell_s = float(self.latency_s[runs].min()) * (1 - LARGEST_FACTOR * s.noise) / CELLS
        wide = 1 + LARGEST_FACTOR * s.noise
        longest_s = float(self.due_s.max()) + float(self.latency_s[runs].max()) * wide
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

    def prepare(self) -> None:
        """Distribution of the cells that each batch takes, and scratch arrays."""
        kinds, variants, sizes = self.latency_s.shape
        self.first = np.zeros((kinds, variants, sizes + 1), dtype=np.int64)
        self.start = np.zeros((kinds, variants, sizes + 1), dtype=np.int64)
        parts, total = [], 0
        for k, v, b in np.ndindex(kinds, variants, sizes + 1):
            self.start[k, v, b] = total
            if 0 < b < sizes and math.isfinite(self.latency_s[k, v, b]):
                self.first[k, v, b], part = self._cells(float(self.latency_s[k, v, b]))
                parts.append(part)
                total += len(part)
        self.weight = np.concatenate(parts)
        longest = int(self.first.max()) + max(len(part) for part in parts)
        grid = LARGEST_FACTOR * (2 * (np.arange(STEPS + 1) + 1) / STEPS - 1)
        self.normal = np.array([_normal(x) for x in grid.tolist()])
        self.best, self.reached = np.zeros((2, self.cells + longest + 1))
        self.chosen = np.zeros(self.cells, dtype=np.int64)
        self.value, self.who = np.zeros(sizes), np.zeros(sizes, dtype=np.int64)
        self.served = np.zeros(len(self.due_s))

    def _cells(self, latency_s: float) -> tuple[int, FloatArray]:
        """The least number of cells, rounded down, and the probabilities of it and the next."""
        wide = LARGEST_FACTOR * self.sigma
        low = int(latency_s * (1 - wide) / self.cell_s + ROUNDING)
        high = int(latency_s * (1 + wide) / self.cell_s + ROUNDING)
        if low == high:
            return low, np.ones(1)
        # Noise is cut off at its limits: what lies beyond belongs to the first and the last cell.
        edges = np.arange(low + 1, high + 1) * self.cell_s / latency_s - 1.0
        below = [_normal(x / self.sigma) for x in edges.tolist()]
        return low, np.diff(np.array([0.0, *below, 1.0]))

    def __call__(self, price: FloatArray) -> float:
        """The bound on the sum of accuracies; `served` is set."""
        earned = _relaxed(
            self.cells,
            self.cell_s,
            self.lows,
            self.highs,
            self.due_s,
            self.floor,
            self.family_of,
            price,
            self.family,
            self.accuracy,
            self.latency_s,
            self.first,
            self.start,
            self.weight,
            self.servers,
            self.sigma,
            self.normal,
            self.best,
            self.chosen,
            self.reached,
            self.value,
            self.who,
            self.served,
        )
        return float(price.sum() + earned)


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
    relaxed.prepare()
    price = best_price = FIRST_PRICE * alone
    best, length, stalled, slope = math.inf, 1.0, 0, np.zeros(len(alone))
    for _ in range(iterations):
        bound = relaxed(price)
        if bound < best:
            best, best_price, slope, stalled = bound, price, 1.0 - relaxed.served, 0
            yield min(best, float(alone.sum())) / len(alone) * (1.0 + ROUNDING)
        else:
            stalled += 1
            if stalled >= STALLED:
                length, stalled, price = SMALLER * length, 0, best_price
        now = slope if price is best_price else 1.0 - relaxed.served
        # Prices at 0 cannot fall: they must not shorten the step of the others.
        free = np.where((price <= 0.0) & (now > 0.0), 0.0, now)
        size = float(free @ free)
        if size == 0.0 or time.perf_counter() > deadline_s:
            break
        price = np.maximum(0.0, price - length * AIM * best / size * free)
