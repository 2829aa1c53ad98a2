"""Prices of machine time: the dual of the fluid program of the load that was seen of late.

If requests of the recent kind went on at the recent rate, and work could be split at will, a
second of server kind k would be worth ``price[k]`` accuracies: the multiplier of its capacity in

    maximise   sum of accuracy x
    subject to each request served at most once; seconds on k <= servers of k x utilisation

Each recent request buys the variant with the most accuracy above its price, and the price of a
kind rises while more is bought than there is (multiplicative weights). The prices start from where
they were, so that a few rounds after some arrivals follow the load.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_no_refcount


@njit_no_refcount
def adjust_prices(
    prices: FloatArray,
    servers: FloatArray,
    rate_per_s: float,
    utilisation: float,
    cost_s: FloatArray,
    request_family: IntArray,
    request_floor: FloatArray,
    request_bucket: IntArray,
    family: IntArray,
    accuracy: FloatArray,
    bought_s: FloatArray,
    rounds: int,
    rate: float,
) -> None:
    """Change `prices` in place.

    `prices`, `servers`, `bought_s`: Shape (kinds,): accuracies per second; how many; scratch.
    `cost_s`: Shape (deadline buckets, kinds, variants): seconds per request; ``inf``: too late.
    """
    samples, (_, kinds, variants) = len(request_family), cost_s.shape
    if samples == 0:
        return
    for _ in range(rounds):
        bought_s[:] = 0.0
        for q in range(samples):
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
        for k in range(kinds):
            if servers[k] > 0:
                load = bought_s[k] * rate_per_s / samples / (servers[k] * utilisation)
                # Multiplicative weights: up while more is bought than there is, by at most `rate`
                # in the logarithm.
                change = rate * max(-1.0, min(1.0, load - 1.0))
                prices[k] = max(1e-3, min(1e4, prices[k] * np.exp(change)))
