"""Load bound and head-load-tail bound; their proofs are in `placewright.operators.bounds`.

The first is the dual of the fractional load problem, by mirror ascent; the second looks at the work
between heads and tails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_cached

MOST_ROUNDS, LEAST_ROUNDS, CELLS = 400, 20, 1e7
"""Of the ascent: groups times devices that all rounds look at, fewer only for the least of rounds.
Four times as many raised the bound by 0.03 % at the most (10,000 operators on 64 devices)."""


def load_bound(
    work_s: FloatArray, resident_bytes: FloatArray, memory_bytes: FloatArray
) -> tuple[float, FloatArray | None]:
    """A lower bound on the largest load of any fractional assignment that fits.

    Beside it the weights of devices, shape (m,), where memory is no matter.

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
    pressed = bool(share[:, limited].sum() > 0)
    bound, weights = _ascend(work_s, share, limited & np.array([pressed]), _rounds(work_s))
    return float(bound), None if pressed else weights


def balanced_weights(work_s: FloatArray) -> FloatArray:
    """Weights of devices, shape (m,), under which the dual is best if memory is no matter."""
    none = np.zeros(work_s.shape[1], dtype=np.bool_)
    weights: FloatArray = _ascend(work_s, np.zeros(work_s.shape), none, _rounds(work_s))[1]
    return weights


def _rounds(work_s: FloatArray) -> int:
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, int(CELLS / work_s.size)))


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


STEPS = 512
"""Heads and tails that are tried, each."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadTailWindows:
    """Pairs of a head a and a tail b, and what must be done between them.

    `around`: Shape (heads, tails): a + b.
    `at`, `to`: Shape (n,): the last head and tail that are no more than an operator's own.
    """

    around: FloatArray
    at: IntArray
    to: IntArray

    def inside(self, a: int, b: int) -> IntArray:
        """Operators with this head or a later one, and this tail or a longer one."""
        return np.flatnonzero((self.at >= a) & (self.to >= b))

    def needed(self, load: FloatArray) -> FloatArray:
        """Shape (heads, tails): a + load of what is inside + b; 0 where that has no load.

        `load`: Shape (n,).
        """
        share = np.zeros(self.around.shape)
        np.add.at(share, (self.at, self.to), load)
        # Two-dimensional suffix sums: the load of all with this head or a later one, and this tail
        # or a longer one.
        inside = share[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
        needed: FloatArray = np.where(inside > 0, self.around + inside, 0.0)
        return needed


def windows_of(head: FloatArray, tail: FloatArray, most: int = STEPS) -> HeadTailWindows:
    """At most so many heads and tails, the least of each among them.

    `head`, `tail`: Shape (n,): an operator starts no earlier, and from its end it is no less to the
    end of all.
    """
    heads, tails = _steps(head, most), _steps(tail, most)
    at = np.searchsorted(heads, head, side="right") - 1
    to = np.searchsorted(tails, tail, side="right") - 1
    return HeadTailWindows(heads[:, None] + tails[None, :], at, to)


def head_load_tail_bound(
    work_s: FloatArray, head_s: FloatArray, tail_s: FloatArray, weights: list[FloatArray]
) -> float:
    """The most of ``a + load of what has a head >= a and a tail >= b + b`` over all a and b.

    O(n m + `STEPS` ** 2) for each of the weights.

    Parameters
    ----------
    work_s
        Shape (n, m), seconds of each operator on each device, ``inf`` where it cannot run.
    head_s, tail_s
        Shape (n,), as `windows_of` has them.
    weights
        Of devices, shape (m,) each, not negative.
    """
    windows = windows_of(head_s, tail_s)
    loads = (_least_shares(work_s, weight / weight.sum()) for weight in weights)
    return max((float(windows.needed(load).max()) for load in loads), default=0.0)


def _least_shares(work_s: FloatArray, weight: FloatArray) -> FloatArray:
    """The least that each operator adds to the weighted mean of the loads."""
    finite = np.isfinite(work_s)
    shares: FloatArray = np.where(finite, np.where(finite, work_s, 0.0) * weight, np.inf).min(
        axis=1
    )
    return shares


def _steps(values: FloatArray, most: int) -> FloatArray:
    known = np.unique(values)
    chosen = np.unique(np.linspace(0, len(known) - 1, most).round().astype(np.int64))
    steps: FloatArray = known[chosen]
    return steps
