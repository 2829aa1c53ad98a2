"""Dynamic programming over cuts of a chain and subsets of devices, compiled.

``best[s, d, c]`` is the least time in which the units before cut c are done on the devices of
the subset s, each with one stretch, the last of them on d:

    best[s + d, d, c] = min over b < c of  max(arrival(b), early(b, c)) + work(b, c) - early(b, c)
    arrival(b)        = min over e in s of (best[s, e, b] + over(e, d, b))

``over`` is what crosses cut b between the two devices, ``early`` the part of the work that waits
for no input. Stretches that d cannot hold or run are left out. O(2^m m u^2).
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import compiled, inlined


@inlined
def _over(
    d: int, e: int, b: int, latency_s: FloatArray, per_byte: FloatArray, load: FloatArray
) -> float:
    """Seconds of what crosses cut b from d to e and back; rows of `load`: ahead, then back."""
    seconds = 0.0
    if load[1, b] > 0:
        seconds += load[1, b] * latency_s[d, e] + load[0, b] * per_byte[d, e]
    if load[3, b] > 0:
        seconds += load[3, b] * latency_s[e, d] + load[2, b] * per_byte[e, d]
    return seconds


@compiled
def lowest_cuts(seconds: FloatArray, resident: FloatArray, budget: FloatArray) -> IntArray:
    """Shape (m, u + 1): the first cut from which a device can run and hold all before cut c."""
    m, u = seconds.shape
    low = np.zeros((m, u + 1), dtype=np.int64)
    for d in range(m):
        held, b = 0.0, 0
        for c in range(u):
            held += resident[c]
            if seconds[d, c] == np.inf:
                held, b = 0.0, c + 1
            while b <= c and held > budget[d]:
                held -= resident[b]
                b += 1
            low[d, c + 1] = b
    return low


@compiled
def best_cuts(
    work: FloatArray,
    early: FloatArray,
    low: IntArray,
    load: FloatArray,
    latency_s: FloatArray,
    per_byte: FloatArray,
) -> tuple[FloatArray, IntArray, IntArray]:
    """Times of all states, and from which cut and device each is reached.

    Parameters
    ----------
    work, early
        Shape (m, u + 1), seconds of all units before a cut: all of it, and what waits for nothing.
    low
        Shape (m, u + 1), of `lowest_cuts`.
    load
        Shape (4, u + 1): bytes and number of tensors ahead, bytes and number back.

    Returns
    -------
    best, cut, before
        Shape (2^m, m, u + 1); ``inf`` and -1 where a state cannot be; `before` is -1 also for the
        first device.
    """
    m, u = work.shape[0], work.shape[1] - 1
    best = np.full((1 << m, m, u + 1), np.inf)
    cut = np.full((1 << m, m, u + 1), -1, dtype=np.int64)
    before = np.full((1 << m, m, u + 1), -1, dtype=np.int64)
    arrival = np.empty(u + 1)
    source = np.empty(u + 1, dtype=np.int64)
    for s in range(1 << m):
        for d in range(m):
            if s >> d & 1:
                continue
            for b in range(u + 1):
                arrival[b], source[b] = np.inf, -1
                for e in range(m):
                    if s >> e & 1 and best[s, e, b] < np.inf:
                        way = best[s, e, b] + _over(e, d, b, latency_s, per_byte, load)
                        if way < arrival[b]:
                            arrival[b], source[b] = way, e
            if s == 0:
                arrival[0] = 0.0
            t = s | 1 << d
            for c in range(1, u + 1):
                least, at = np.inf, -1
                for b in range(low[d, c], c):
                    first = early[d, c] - early[d, b]
                    value = max(arrival[b], first) + work[d, c] - work[d, b] - first
                    if value < least:
                        least, at = value, b
                if at >= 0:
                    best[t, d, c], cut[t, d, c], before[t, d, c] = least, at, source[at]
    return best, cut, before
