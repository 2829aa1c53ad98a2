"""The dual of the fractional load problem, by mirror ascent; see `placewright.operators.bounds`."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.numerics.njit import njit_cached

_ROUNDS = 400


def load_bound(work_s: FloatArray, resident_bytes: FloatArray, memory_bytes: FloatArray) -> float:
    """A lower bound on the largest load of any fractional assignment that fits.

    Parameters
    ----------
    work_s
        Shape (groups, m), seconds; ``inf`` where not allowed.
    resident_bytes
        Shape (groups,).
    memory_bytes
        Shape (m,); ``inf`` where unlimited.
    """
    limited = np.isfinite(memory_bytes) & (memory_bytes > 0)
    share = np.zeros(work_s.shape)
    # Bytes in shares of a memory, so that prices are seconds per full memory and steps alike.
    share[:, limited] = resident_bytes[:, None] / memory_bytes[limited]
    pressed = np.array([share[:, limited].sum() > 0])
    rounds = max(20, min(_ROUNDS, int(4e7 / work_s.size)))
    return float(_ascend(work_s, share, limited & pressed, rounds)[0])


def balanced_weights(work_s: FloatArray) -> FloatArray:
    """Weights of devices, shape (m,), under which the dual is best if memory is no matter."""
    rounds = max(20, min(_ROUNDS, int(4e7 / work_s.size)))
    none = np.zeros(work_s.shape[1], dtype=np.bool_)
    weights: FloatArray = _ascend(work_s, np.zeros(work_s.shape), none, rounds)[1]
    return weights


@njit_cached
def _ascend(
    work_s: FloatArray, share: FloatArray, limited: BoolArray, rounds: int
) -> tuple[float, FloatArray]:
    """Best dual value seen, and its weights. Prices are in seconds per full memory."""
    m = work_s.shape[1]
    weight, price = _start(work_s), np.zeros(m)
    average, average_price = np.zeros(m), np.zeros(m)
    best, best_weight = 0.0, weight.copy()
    for step in range(rounds):
        value, load, full = _dual(work_s, share, weight, price)
        if value > best:
            best, best_weight = value, weight.copy()
        scale = max(load.max(), 1e-300)
        rate = 1.0 / np.sqrt(1.0 + step)
        total = 0.0
        for d in range(m):
            # Mirror ascent: weights stay positive and, divided by their sum, on the simplex.
            weight[d] *= np.exp(0.5 * rate * (load[d] / scale - 1.0))
            total += weight[d]
            if limited[d]:
                price[d] = max(0.0, price[d] + 0.5 * rate * best * (full[d] - 1.0))
        weight /= total
        average += weight
        average_price += price
        # The mean of the iterates is often better than any one of them; it is as valid.
        if step % 10 == 9:
            mean = average / average.sum()
            value, load, full = _dual(work_s, share, mean, average_price / (step + 1))
            if value > best:
                best, best_weight = value, mean
    return best, best_weight


@njit_cached
def _start(work_s: FloatArray) -> FloatArray:
    """Weights inverse to a device's time for everything: optimal for devices of plain speeds."""
    groups, m = work_s.shape
    weight = np.ones(m)
    for d in range(m):
        total, count = 0.0, 0
        for g in range(groups):
            if np.isfinite(work_s[g, d]):
                total += work_s[g, d]
                count += 1
        weight[d] = count / total if total > 0.0 else 1.0
    scaled: FloatArray = weight / weight.sum()
    return scaled


@njit_cached
def _dual(
    work_s: FloatArray, share: FloatArray, weight: FloatArray, price: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Dual value, and load and fullness of each device when each group takes its cheapest."""
    groups, m = work_s.shape
    load, full = np.zeros(m), np.zeros(m)
    value = -price.sum()
    for g in range(groups):
        at, least = -1, np.inf
        for d in range(m):
            if work_s[g, d] < np.inf:
                cost = weight[d] * work_s[g, d] + price[d] * share[g, d]
                if at < 0 or cost < least:
                    at, least = d, cost
        value += least
        load[at] += work_s[g, at]
        full[at] += share[g, at]
    return value, load, full
