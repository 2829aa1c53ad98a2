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

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_no_refcount

LEAST_FREE = 0.02
"""Share of time kept free at any price, unless less is asked for."""


@njit_no_refcount
def adjust_prices(
    prices: FloatArray,
    servers: FloatArray,
    rate_per_s: float,
    kept_free: float,
    dear: FloatArray,
    cost_s: FloatArray,
    request_family: IntArray,
    request_floor: FloatArray,
    request_bucket: IntArray,
    family: IntArray,
    accuracy: FloatArray,
    utilisation: FloatArray,
    bought_s: FloatArray,
    rounds: int,
    rate: float,
) -> None:
    """Change `prices` in place.

    `prices`, `servers`: Shape (kinds,): accuracies per second; how many, above 0.
    `kept_free`: share of the servers' time.
    `cost_s`: Shape (deadline buckets, kinds, variants): seconds per request; ``inf``: too late.
    `dear`: Shape (kinds,): from half of this price on less is kept free, above it the least.
    `utilisation`, `bought_s`: Shape (kinds,): written; scratch.
    """
    samples, (_, kinds, variants) = len(request_family), cost_s.shape
    if samples == 0:
        return
    # Requests that are alike buy the same kind, in turn each of those that are as dear: with all
    # samples in one step its price would fall in most steps, and rise too little in its own.
    step = max(1, samples // kinds**2)
    for _ in range(rounds):
        for k in range(kinds):
            free = kept_free * min(1.0, 2.0 - 2.0 * prices[k] / dear[k])
            utilisation[k] = 1.0 - max(min(free, 0.95), min(kept_free, LEAST_FREE))
        for first in range(0, samples, step):
            last = min(samples, first + step)
            bought_s[:] = 0.0
            for q in range(first, last):
                best, chosen, seconds = 0.0, -1, 0.0
                for v in range(variants):
                    if family[v] != request_family[q] or accuracy[v] < request_floor[q]:
                        continue
                    for k in range(kinds):
                        cost = cost_s[request_bucket[q], k, v]
                        gain = accuracy[v] - prices[k] * cost
                        if gain > best:
                            best, chosen, seconds = gain, k, cost
                if chosen >= 0:
                    bought_s[chosen] += seconds
            share = (last - first) / samples
            for k in range(kinds):
                load = bought_s[k] * rate_per_s / (last - first) / (servers[k] * utilisation[k])
                # Multiplicative weights: up while more is bought than there is.
                change = rate * share * max(-1.0, min(2.0 * kinds - 1.0, load - 1.0))
                prices[k] = max(1e-3, min(1e4, prices[k] * np.exp(change)))
