"""Topology of a problem: which tensors operators read and make, and a topological order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import njit_cached


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """Derived structure of a problem.

    Attributes
    ----------
    order
        Operators, producers first; first in, first out from the operators in input order.
        Shorter than n if the graph has a cycle.
    in_offsets, in_tensors
        CSR: tensors read by each operator (each tensor once).
    out_offsets, out_tensors
        CSR: tensors made by each operator.
    """

    order: IntArray
    in_offsets: IntArray
    in_tensors: IntArray
    out_offsets: IntArray
    out_tensors: IntArray

    @property
    def position(self) -> IntArray:
        """Shape (n,): place of each operator in `order`."""
        found = np.empty(len(self.order), dtype=np.int64)
        found[self.order] = np.arange(len(self.order))
        return found

    def read_by(self, operator: int) -> IntArray:
        """Tensors that an operator reads."""
        return self.in_tensors[self.in_offsets[operator] : self.in_offsets[operator + 1]]

    def made_by(self, operator: int) -> IntArray:
        """Tensors that an operator makes."""
        return self.out_tensors[self.out_offsets[operator] : self.out_offsets[operator + 1]]


def build_topology(
    n: int, producer: IntArray, consumer_offsets: IntArray, consumers: IntArray
) -> Topology:
    """Invert the tensor lists and sort topologically in O(n + edges)."""
    tensor_of = np.repeat(np.arange(len(producer)), np.diff(consumer_offsets))
    # Stable sorts: an operator's tensors are by index, which sums of rules N1 and L3 rely on.
    by_consumer = np.argsort(consumers, kind="stable")
    in_offsets = np.searchsorted(consumers[by_consumer], np.arange(n + 1))
    in_tensors = tensor_of[by_consumer]
    out_tensors = np.argsort(producer, kind="stable")
    out_offsets = np.searchsorted(producer[out_tensors], np.arange(n + 1))
    arrays = [
        np.ascontiguousarray(a, dtype=np.int64)
        for a in (in_offsets, in_tensors, out_offsets, out_tensors)
    ]
    order = _topological_order(n, consumer_offsets, consumers, arrays[2], arrays[3])
    for array in (order, *arrays):
        array.setflags(write=False)
    return Topology(order, *arrays)


def cycle_of(topology: Topology, producer: IntArray, n: int) -> list[int]:
    """Operators of a cycle, each before one that reads what it makes; there is no full order."""
    stuck = set(range(n)) - set(topology.order.tolist())
    way = [min(stuck)]
    while way[-1] not in way[:-1]:  # whoever is stuck waits for another who is
        before = producer[topology.read_by(way[-1])].tolist()
        way.append(next(i for i in before if i in stuck))
    cycle = way[way.index(way[-1]) : -1][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


@njit_cached
def _topological_order(
    n: int,
    consumer_offsets: IntArray,
    consumers: IntArray,
    out_offsets: IntArray,
    out_tensors: IntArray,
) -> IntArray:
    waiting = np.zeros(n, dtype=np.int64)
    for c in consumers:
        waiting[c] += 1
    order = np.empty(n, dtype=np.int64)
    tail = 0
    for i in range(n):
        if waiting[i] == 0:
            order[tail] = i
            tail += 1
    head = 0
    # Kahn's algorithm; `order` is its own queue.
    while head < tail:
        i = order[head]
        head += 1
        for a in range(out_offsets[i], out_offsets[i + 1]):
            k = out_tensors[a]
            for b in range(consumer_offsets[k], consumer_offsets[k + 1]):
                c = consumers[b]
                waiting[c] -= 1
                if waiting[c] == 0:
                    order[tail] = c
                    tail += 1
    return order[:tail].copy()
