"""Local search on a core, compiled: ejection chains under prices, undone unless they pay.

A chain changes one node, lets neighbours answer at their best priced cost, and then buys room
back on the rows that overflow, cheapest first. It is kept if everything fits and simulated
annealing accepts its true cost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import compiled, inner
from placewright.solvers._memory_core import Core, Loads
from placewright.solvers._pbqp_work import Arrays

CHAIN, REPAIRS = 24, 12
"""Nodes that a chain may change, and how many of them to make room."""

DONE, SIZE, STAMP = 0, 1, 2
"""Slots of `State.counts`: moves tried, length of the chain, its number."""


class State(NamedTuple):
    """An assignment under search; `near` lists edges by node, as half-edges."""

    choice: IntArray
    load: IntArray
    price: FloatArray
    first: IntArray
    near: IntArray
    stamp: IntArray
    chain: IntArray
    trial: FloatArray
    counts: IntArray


def state_of(core: Core, choice: IntArray, load: IntArray, price: FloatArray) -> State:
    """Everything the search writes to, once."""
    arrays, n = core.arrays, len(core.arrays.start) - 1
    ends = arrays.ends.ravel()
    widest = int(np.diff(arrays.start).max(initial=1))
    return State(
        choice.copy(),
        load.copy(),
        price.copy(),
        np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=n))]),
        np.argsort(ends, kind="stable"),
        np.zeros(n, np.int64),
        np.zeros((CHAIN, 2), np.int64),
        np.zeros(widest),
        np.zeros(3, np.int64),
    )


@inner
def _trial(arrays: Arrays, s: State, node: int) -> None:
    """True cost of every option of `node` beside its neighbours, into ``s.trial``."""
    own, width = arrays.start[node], arrays.start[node + 1] - arrays.start[node]
    for a in range(width):
        s.trial[a] = arrays.cost[own + a]
    for p in range(s.first[node], s.first[node + 1]):
        edge, side = s.near[p] // 2, s.near[p] % 2
        other = arrays.ends[edge, 1 - side]
        at, step = arrays.matrix[edge] + s.choice[other] * width, 1
        if side == 0:
            step = arrays.start[other + 1] - arrays.start[other]
            at = arrays.matrix[edge] + s.choice[other]
        for a in range(width):
            s.trial[a] += arrays.pool[at + a * step]


@inner
def _put(arrays: Arrays, loads: Loads, s: State, node: int, option: int) -> None:
    """Change a node, and the loads."""
    width = arrays.start[node + 1] - arrays.start[node]
    at = loads.block[node]
    for p in range(loads.first[node], loads.first[node + 1]):
        s.load[loads.row[p]] += loads.use[at + option] - loads.use[at + s.choice[node]]
        at += width
    s.choice[node] = option


@inner
def _link(arrays: Arrays, loads: Loads, s: State, node: int, option: int) -> None:
    """Make `node` the next of the chain."""
    s.chain[s.counts[SIZE], 0], s.chain[s.counts[SIZE], 1] = node, s.choice[node]
    s.counts[SIZE] += 1
    s.stamp[node] = s.counts[STAMP]
    _put(arrays, loads, s, node, option)


@inner
def _answers(arrays: Arrays, loads: Loads, s: State, head: int) -> None:
    """Let the neighbours of the chain's nodes from `head` on answer."""
    while head < s.counts[SIZE]:
        node = s.chain[head, 0]
        head += 1
        for p in range(s.first[node], s.first[node + 1]):
            other = arrays.ends[s.near[p] // 2, 1 - s.near[p] % 2]
            if s.stamp[other] == s.counts[STAMP] or s.counts[SIZE] >= CHAIN - REPAIRS:
                continue
            _trial(arrays, s, other)
            option = _best_priced(arrays, loads, s, other)
            if option != s.choice[other]:
                _link(arrays, loads, s, other, option)


@inner
def _best_priced(arrays: Arrays, loads: Loads, s: State, node: int) -> int:
    """The option with the least cost plus priced usage; the present one if none is better."""
    width = arrays.start[node + 1] - arrays.start[node]
    best, least = s.choice[node], np.inf
    for k in range(width + 1):
        a = s.choice[node] if k == 0 else k - 1
        total, at = s.trial[a], loads.block[node] + a
        p = loads.first[node]
        while p < loads.first[node + 1] and total < least:
            total += s.price[loads.row[p]] * loads.use[at]
            at += width
            p += 1
        if total < least:
            best, least = a, total
    return int(best)


@inner
def _fullest(loads: Loads, s: State) -> int:
    """The row that overflows most, -1 if none does."""
    worst, most = -1, 0
    for r in range(len(loads.room)):
        if s.load[r] - loads.room[r] > most:
            worst, most = r, s.load[r] - loads.room[r]
    return worst


@inner
def _line(loads: Loads, node: int, row: int) -> int:
    """Where the usages of `node` on `row` are listed among its rows."""
    low, high = loads.first[node], loads.first[node + 1]
    while high - low > 1:
        middle = (low + high) // 2
        if loads.row[middle] <= row:
            low = middle
        else:
            high = middle
    return int(low - loads.first[node])


@inner
def _make_room(arrays: Arrays, loads: Loads, s: State, row: int) -> bool:
    """Change the node that frees `row` at the least cost per unit; whether any can."""
    over = s.load[row] - loads.room[row]
    best, option, ratio = -1, 0, np.inf
    for q in range(loads.begin[row], loads.begin[row + 1]):
        node = loads.member[q]
        if s.stamp[node] == s.counts[STAMP]:
            continue
        width = arrays.start[node + 1] - arrays.start[node]
        at = loads.block[node] + _line(loads, node, row) * width
        if loads.use[at + s.choice[node]] == 0:
            continue
        _trial(arrays, s, node)
        for a in range(width):
            freed = min(over, loads.use[at + s.choice[node]] - loads.use[at + a])
            if freed > 0:
                dearer = (s.trial[a] - s.trial[s.choice[node]]) / freed
                if dearer < ratio:
                    best, option, ratio = node, a, dearer
    if best >= 0:
        _link(arrays, loads, s, best, option)
    return best >= 0


@inner
def _repair(arrays: Arrays, loads: Loads, s: State) -> bool:
    """Make room until everything fits; whether it does."""
    row = _fullest(loads, s)
    while row >= 0:
        head = s.counts[SIZE]
        if head >= CHAIN or not _make_room(arrays, loads, s, row):
            return False
        _answers(arrays, loads, s, head)
        row = _fullest(loads, s)
    return True


@inner
def _undo(arrays: Arrays, loads: Loads, s: State) -> None:
    while s.counts[SIZE]:
        s.counts[SIZE] -= 1
        _put(arrays, loads, s, s.chain[s.counts[SIZE], 0], s.chain[s.counts[SIZE], 1])


@inner
def _around(arrays: Arrays, s: State) -> float:
    """Cost of the chain's nodes and of all edges at them."""
    total = 0.0
    for k in range(s.counts[SIZE]):
        node = s.chain[k, 0]
        total += arrays.cost[arrays.start[node] + s.choice[node]]
        for p in range(s.first[node], s.first[node + 1]):
            edge, side = s.near[p] // 2, s.near[p] % 2
            other = arrays.ends[edge, 1 - side]
            if s.stamp[other] == s.counts[STAMP] and other < node:
                continue
            i, j = (node, other) if side == 0 else (other, node)
            width = arrays.start[j + 1] - arrays.start[j]
            total += arrays.pool[arrays.matrix[edge] + s.choice[i] * width + s.choice[j]]
    return total


@inner
def _exchange(s: State) -> None:
    """Swap the chain's options with those it has replaced."""
    for k in range(s.counts[SIZE]):
        node = s.chain[k, 0]
        s.chain[k, 1], s.choice[node] = s.choice[node], s.chain[k, 1]


@inner
def _change(arrays: Arrays, s: State) -> float:
    """What the chain costs; what was there before is finite."""
    after = _around(arrays, s)
    _exchange(s)
    before = _around(arrays, s)
    _exchange(s)
    return float(after - before)


@compiled
def anneal(
    arrays: Arrays, loads: Loads, s: State, draws: FloatArray, heat: float, best: IntArray
) -> tuple[float, float]:
    """One chain per line of `draws` (node, option, luck); `best` receives the cheapest state.

    Returns how much `best`, and the last state, cost beyond the first, which must fit.
    """
    now = lowest = 0.0
    n = len(arrays.start) - 1
    for k in range(len(draws)):
        node = int(draws[k, 0] * n)
        width = arrays.start[node + 1] - arrays.start[node]
        if width < 2:
            continue
        s.counts[SIZE] = 0
        s.counts[STAMP] += 1
        _link(arrays, loads, s, node, (s.choice[node] + 1 + int(draws[k, 1] * (width - 1))) % width)
        _answers(arrays, loads, s, 0)
        fits = _change(arrays, s) < np.inf and _repair(arrays, loads, s)
        change = _change(arrays, s)
        if not fits or change > -heat * np.log(draws[k, 2]):
            _undo(arrays, loads, s)
            continue
        now += change
        if now < lowest:
            lowest = now
            best[:] = s.choice
    return lowest, now


@compiled
def squeeze(arrays: Arrays, loads: Loads, s: State, patience: int) -> bool:
    """Make room, however dear, until everything fits or `patience` chains are used up."""
    for _ in range(patience):
        s.counts[SIZE] = 0
        s.counts[STAMP] += 1
        if _repair(arrays, loads, s):
            return True
    return False
