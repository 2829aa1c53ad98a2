"""Ranks of list schedulers, compiled."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached
from placewright.operators.structure.costs import Costs, move_time


@njit_cached
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
            transfer_s = latency_s + c.tensor_bytes[k] * seconds_per_byte
            for b in range(c.offsets[k], c.offsets[k + 1]):
                tail = max(tail, transfer_s + rank[c.consumers[b]])
        rank[i] = compute_s[i] + tail
    return rank


@njit_cached
def mean_downward_rank(
    c: Costs, compute_s: FloatArray, latency_s: float, seconds_per_byte: float
) -> FloatArray:
    """rank(i) = max over producers p of (rank(p) + w(p) + c(p, i)): the producer's w, not i's."""
    rank = np.zeros(len(compute_s))
    for i in c.order:
        for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
            k = c.in_tensors[a]
            p = c.producer[k]
            transfer_s = latency_s + c.tensor_bytes[k] * seconds_per_byte
            rank[i] = max(rank[i], rank[p] + compute_s[p] + transfer_s)
    return rank


@njit_cached
def mean_critical_path(
    c: Costs, rank: FloatArray, latency_s: float, seconds_per_byte: float
) -> IntArray:
    """Operators from the highest upward rank along its arg max to a sink."""
    n = len(rank)
    path = np.empty(n, dtype=np.int64)
    i, size = -1, 0
    for j in range(n):
        if i < 0 or rank[j] > rank[i]:
            i = j
    while i >= 0:
        path[size] = i
        size += 1
        longest, following = -1.0, -1
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            transfer_s = latency_s + c.tensor_bytes[k] * seconds_per_byte
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                if transfer_s + rank[j] > longest:
                    longest, following = transfer_s + rank[j], j
        i = following
    return path[:size]


@njit_cached
def optimistic_costs(c: Costs, work_s: FloatArray) -> FloatArray:
    """PEFT's table, shape (n, m); transfers between the very devices.

    oct(i,p) = max over consumers j of min over q of (c(i,p -> j,q) + w(j,q) + oct(j,q)).
    """
    n, m = work_s.shape
    table = np.zeros((n, m))
    for at in range(n - 1, -1, -1):
        i = c.order[at]
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                for p in range(m):
                    best = np.inf
                    for q in range(m):
                        best = min(best, move_time(c, k, p, q) + (table[j, q] + work_s[j, q]))
                    table[i, p] = max(table[i, p], best)
    return table
