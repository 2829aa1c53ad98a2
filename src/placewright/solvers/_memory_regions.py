"""Local search on a core by regions: some connected nodes chosen again, the others as they are.

A region is a small PBQP, which reductions solve well, with memory priced: first at the prices
that the bound has found, times a factor, then dearer on every row that its answer overfills.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached
from placewright.solvers._memory_core import Core, Loads
from placewright.solvers._memory_moves import STAMP, State, fullest, put
from placewright.solvers._pbqp_search import reduce_greedily
from placewright.solvers._pbqp_work import Arrays, evaluate

ATTEMPTS = 5
"""How often a region's prices are raised where its answer does not fit."""

SCALES = (0.0, 0.06, 0.125, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
"""Factors of the prices that regions begin with."""


def improve_region(core: Core, s: State, rng: np.random.Generator, size: int, heat: float) -> float:
    """Choose a random region anew; the change of cost, 0 where nothing acceptable was found.

    Parameters
    ----------
    s
        An assignment that fits; it does afterwards.
    size
        Nodes of the region, at most.
    heat
        A dearer answer is accepted if dearer by at most `heat` times a logarithm of luck.
    """
    arrays, loads = core.arrays, core.loads
    # Prices, luck, the first node, and one for every further one.
    draws = rng.random(size + 3)
    nodes = gathered(arrays, s, draws[3:], draws[2])
    part = cut_out(arrays, s, nodes)
    before = s.choice[nodes]
    now = float(evaluate(part, before))
    memory_cost = SCALES[int(draws[0] * len(SCALES))] * memory_costs_of(arrays, s, nodes)
    for attempt in range(ATTEMPTS):
        answer = reduce_greedily(part._replace(cost=part.cost + memory_cost))
        if (answer.choice == before).all():
            return 0.0
        change = float(evaluate(part, answer.choice)) - now
        # Dearer prices would only make it dearer still.
        if change > -heat * np.log(max(draws[1], 1e-300)):
            return 0.0
        row, over = exchange(loads, s, nodes, answer.choice)
        if row < 0:
            return change
        # Does not fit: back, and raise the fullest row's price by what would have made both answers
        # equal, more with every attempt.
        exchange(loads, s, nodes, before)
        own = part.cost + memory_cost
        gain = evaluate(part._replace(cost=own), before) - answer.value
        each = max(float(gain), abs(change), 1e-9 * abs(now)) / over * 1.5**attempt
        charge(arrays, loads, nodes, row, each, memory_cost)
    return 0.0


@njit_cached
def gathered(arrays: Arrays, s: State, draws: FloatArray, first: float) -> IntArray:
    """A random connected part around a node, of at most a node per draw; ascending."""
    n = len(arrays.start) - 1
    nodes = np.empty(len(draws), np.int64)
    border = np.empty(2 * len(arrays.ends) + 1, np.int64)
    s.counts[STAMP] += 1
    border[0], waiting, size = int(first * n), 1, 0
    s.stamp[border[0]] = s.counts[STAMP]
    for k in range(len(draws)):
        if waiting == 0:
            break
        at = int(draws[k] * waiting)
        node = border[at]
        # The border is a set: the last of it fills the gap.
        waiting -= 1
        border[at] = border[waiting]
        nodes[size] = node
        size += 1
        for p in range(s.first[node], s.first[node + 1]):
            other = arrays.ends[s.near[p] // 2, 1 - s.near[p] % 2]
            if s.stamp[other] != s.counts[STAMP]:
                s.stamp[other] = s.counts[STAMP]
                border[waiting] = other
                waiting += 1
    return np.sort(nodes[:size])


@njit_cached
def cut_out(arrays: Arrays, s: State, nodes: IntArray) -> Arrays:
    """The region as a problem of its own; edges to other nodes count at their choices."""
    number = np.full(len(arrays.start) - 1, -1)
    start = np.zeros(len(nodes) + 1, np.int64)
    edges = entries = 0
    for k in range(len(nodes)):
        number[nodes[k]] = k
        start[k + 1] = start[k] + arrays.start[nodes[k] + 1] - arrays.start[nodes[k]]
    for k in range(len(nodes)):
        for p in range(s.first[nodes[k]], s.first[nodes[k] + 1]):
            other = arrays.ends[s.near[p] // 2, 1 - s.near[p] % 2]
            # Inner edges are seen from both ends; the first one counts.
            if s.near[p] % 2 == 0 and number[other] >= 0:
                edges += 1
                entries += (start[k + 1] - start[k]) * (
                    arrays.start[other + 1] - arrays.start[other]
                )
    cost, pool = np.empty(start[-1]), np.empty(entries)
    ends, matrix = np.empty((edges, 2), np.int64), np.empty(edges, np.int64)
    edges = entries = 0
    for k in range(len(nodes)):
        node, width = nodes[k], start[k + 1] - start[k]
        cost[start[k] : start[k + 1]] = arrays.cost[arrays.start[node] : arrays.start[node + 1]]
        for p in range(s.first[node], s.first[node + 1]):
            edge, side = s.near[p] // 2, s.near[p] % 2
            other = arrays.ends[edge, 1 - side]
            at, across = arrays.matrix[edge], arrays.start[other + 1] - arrays.start[other]
            if number[other] < 0:
                step, skip = (across, 1) if side == 0 else (1, width)
                at += s.choice[other] * skip
                for a in range(width):
                    cost[start[k] + a] += arrays.pool[at + a * step]
            elif side == 0:
                ends[edges, 0], ends[edges, 1], matrix[edges] = k, number[other], entries
                pool[entries : entries + width * across] = arrays.pool[at : at + width * across]
                entries += width * across
                edges += 1
    return Arrays(start, cost, ends, matrix, pool)


@njit_cached
def memory_costs_of(arrays: Arrays, s: State, nodes: IntArray) -> FloatArray:
    """Priced memory of the region's options."""
    total = 0
    for node in nodes:
        total += arrays.start[node + 1] - arrays.start[node]
    memory_cost, at = np.empty(total), 0
    for node in nodes:
        for a in range(arrays.start[node], arrays.start[node + 1]):
            memory_cost[at] = s.memory_cost[a]
            at += 1
    return memory_cost


@njit_cached
def charge(
    arrays: Arrays, loads: Loads, nodes: IntArray, row: int, each: float, memory_cost: FloatArray
) -> None:
    """Raise the price of one row."""
    at = 0
    for node in nodes:
        width = arrays.start[node + 1] - arrays.start[node]
        for p in range(loads.first[node], loads.first[node + 1]):
            if loads.low[p] <= row < loads.high[p]:
                for a in range(width):
                    memory_cost[at + a] += each * loads.use[loads.block[p] + a]
        at += width


@njit_cached
def exchange(loads: Loads, s: State, nodes: IntArray, options: IntArray) -> tuple[int, int]:
    """Put the region's nodes to these options: the row that overflows most (or -1), by how much."""
    for k in range(len(nodes)):
        if s.choice[nodes[k]] != options[k]:
            put(loads, s, nodes[k], options[k])
    return fullest(s), s.over[1]
