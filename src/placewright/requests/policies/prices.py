"""Prices of machine time: the dual of the fluid program of the load that was seen of late.

If requests of the recent kind went on at the recent rate, and work could be split at will, a
second of server kind k would be worth ``price[k]`` accuracies: the multiplier of its capacity in

    maximise   sum of accuracy x
    subject to each request served at most once; seconds on k <= servers of k x utilisation[k]

Each recent request buys the variant with the most accuracy above its price, and the price of a
kind rises while more is bought than there is (multiplicative weights). The prices start from where
they were, so that a few rounds after some arrivals follow the load.

Time is kept free for what comes in bursts, as long as it would only buy more accurate variants: at
prices at which nobody pays for those, free time would cost requests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_no_refcount

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
