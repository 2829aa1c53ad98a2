"""Ranks of list schedulers, compiled."""

from __future__ import annotations

import numpy as np

from placewright.arrays import FloatArray
from placewright.compiled import compiled
from placewright.operators._costs import Costs


@compiled
def mean_upward_rank(
    c: Costs, compute_s: FloatArray, latency_s: float, seconds_per_byte: float
) -> FloatArray:
    """rank(i) = w(i) + max over consumers j of (c(i, j) + rank(j)), with mean costs."""
    rank = np.zeros(len(compute_s))
    for at in range(len(c.order) - 1, -1, -1):
        i = c.order[at]
        tail = 0.0
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            way = latency_s + c.tensor_bytes[k] * seconds_per_byte
            for b in range(c.offsets[k], c.offsets[k + 1]):
                tail = max(tail, way + rank[c.consumers[b]])
        rank[i] = compute_s[i] + tail
    return rank


@compiled
def mean_downward_rank(
    c: Costs, compute_s: FloatArray, latency_s: float, seconds_per_byte: float
) -> FloatArray:
    """rank(i) = max over producers p of (rank(p) + w(p) + c(p, i)): the producer's w, not i's."""
    rank = np.zeros(len(compute_s))
    for i in c.order:
        for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
            k = c.in_tensors[a]
            p = c.producer[k]
            way = latency_s + c.tensor_bytes[k] * seconds_per_byte
            rank[i] = max(rank[i], rank[p] + compute_s[p] + way)
    return rank
