"""Local search on a core, compiled: ejection chains under prices, undone unless they pay.

A chain changes one node, lets neighbours answer at their best priced cost, and then buys room
back on the rows that overflow, cheapest first. It is kept if everything fits and simulated
annealing accepts its true cost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached, njit_internal
from placewright.solvers._memory_core import Core, Loads, loaded, priced
from placewright.solvers._pbqp_work import Arrays

CHAIN, REPAIRS = 24, 12
"""Nodes that a chain may change, and how many of them to make room."""

DONE, SIZE, STAMP = 0, 1, 2
"""Slots of `State.counts`: moves tried, length of the chain, its number."""


CANDIDATES = 64
"""Nodes that are looked at, in turn, to make room on a row."""

FAR = -(2**61)
"""What places of the tree that are no row are filled to."""


class State(NamedTuple):
    """An assignment under search; `near` lists edges by node, as half-edges.

    How full the rows are is kept in a tree: ``over[1]`` is the most that any row is above its
    room, ``over[half + r]`` belongs to row r, and a place p holds the greater of its two children
    2p and 2p + 1, plus ``later[p]``, which all rows below it have in common. Runs that cover the
    rows of place p as a whole, and not those of its parent, are ``cover[begin[p]]`` to before
    ``cover[begin[p + 1]]``; run q is of node ``owner[q]``.

    Half-edges of node i are ``near[first[i] : first[i + 1]]``, numbered ``2 * edge + side`` as in
    `placewright.solvers._pbqp_work`. A line of `chain` is (node, option that it had). A node is in
    the chain if its `stamp` is the chain's number, so that nothing is cleared between chains.
    `memory_cost` has every option's usage at the prices, aligned with ``arrays.cost``.
    """

    choice: IntArray
    memory_cost: FloatArray
    over: IntArray
    later: IntArray
    begin: IntArray
    cover: IntArray
    owner: IntArray
    first: IntArray
    near: IntArray
    stamp: IntArray
    chain: IntArray
    trial: FloatArray
    counts: IntArray


def state_of(core: Core, choice: IntArray, price: FloatArray) -> State:
    """Everything the search writes to, once."""
    arrays, loads, n = core.arrays, core.loads, len(core.arrays.start) - 1
    ends = arrays.ends.ravel()
    widest = int(np.diff(arrays.start).max(initial=1))
    half = 1 << max(1, int(len(loads.room) - 1).bit_length())
    begin, cover = _covers(loads, half)
    state = State(
        choice.copy(),
        priced(arrays._replace(cost=np.zeros(len(arrays.cost))), loads, price),
        np.zeros(2 * half, np.int64),
        np.zeros(half, np.int64),
        begin,
        cover,
        np.repeat(np.arange(n), np.diff(loads.first)),
        np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=n))]),
        np.argsort(ends, kind="stable"),
        np.zeros(n, np.int64),
        np.zeros((CHAIN, 2), np.int64),
        np.zeros(widest),
        np.zeros(3, np.int64),
    )
    reset(arrays, loads, state, choice)
    return state


@njit_cached
def _covers(loads: Loads, half: int) -> tuple[IntArray, IntArray]:
    """Runs by the places of the tree that they cover."""
    begin = np.zeros(2 * half + 1, np.int64)
    cover = np.zeros(0, np.int64)
    # Counting sort in two passes: count by place, turn counts into beginnings, then put in.
    for filling in range(2):
        for p in range(len(loads.low)):
            low, high = loads.low[p] + half, loads.high[p] + half
            # Bottom-up through a segment tree: an odd left end, or an odd right one, is no left
            # child whose parent could stand for it.
            while low < high:
                if low & 1:
                    if filling:
                        cover[begin[low]] = p
                    begin[low] += 1
                    low += 1
                if high & 1:
                    high -= 1
                    if filling:
                        cover[begin[high]] = p
                    begin[high] += 1
                low >>= 1
                high >>= 1
        if not filling:
            cover = np.zeros(begin.sum(), np.int64)
        total = 0
        if filling:
            # Filling has moved every beginning to its end, which is where the next place begins.
            for k in range(2 * half, 0, -1):
                begin[k] = begin[k - 1]
            begin[0] = 0
        else:
            for k in range(2 * half + 1):
                total, begin[k] = total + begin[k], total
    return begin, cover


@njit_cached
def reset(arrays: Arrays, loads: Loads, s: State, choice: IntArray) -> None:
    """Go back to an assignment."""
    s.choice[:] = choice
    half = len(s.later)
    s.later[:] = 0
    s.over[:] = FAR
    used = loaded(arrays, loads, choice)
    for r in range(len(loads.room)):
        s.over[half + r] = used[r] - loads.room[r]
    for k in range(half - 1, 0, -1):
        s.over[k] = max(s.over[2 * k], s.over[2 * k + 1])


@njit_internal
def _fill(s: State, low: int, high: int, amount: int) -> None:
    """Add to all rows from `low` to below `high`."""
    half = len(s.later)
    left, right = low + half, high + half
    # All maxima that change stand above the two outer leaves; what lies between is moved as a
    # whole.
    first, last = left, right - 1
    while left < right:
        if left & 1:
            s.over[left] += amount
            if left < half:
                s.later[left] += amount
            left += 1
        if right & 1:
            right -= 1
            s.over[right] += amount
            if right < half:
                s.later[right] += amount
        left >>= 1
        right >>= 1
    _update_ancestors(s, first)
    _update_ancestors(s, last)


@njit_internal
def _update_ancestors(s: State, place: int) -> None:
    """Recompute the maxima of all places above this one."""
    place >>= 1
    while place:
        s.over[place] = max(s.over[2 * place], s.over[2 * place + 1]) + s.later[place]
        place >>= 1


@njit_internal
def fullest(s: State) -> int:
    """The row that overflows most, -1 if none does."""
    if s.over[1] <= 0:
        return -1
    place = 1
    while place < len(s.later):
        place *= 2
        # `later` of the parents is the same for both children and does not matter.
        if s.over[place + 1] > s.over[place]:
            place += 1
    return place - len(s.later)


@njit_internal
def _trial(arrays: Arrays, s: State, node: int) -> None:
    """True cost of every option of `node` beside its neighbours, into ``s.trial``."""
    own, width = arrays.start[node], arrays.start[node + 1] - arrays.start[node]
    for a in range(width):
        s.trial[a] = arrays.cost[own + a]
    for p in range(s.first[node], s.first[node + 1]):
        edge, side = s.near[p] // 2, s.near[p] % 2
        other = arrays.ends[edge, 1 - side]
        # As the second end of the edge: a row of the matrix; as the first: a column.
        at, step = arrays.matrix[edge] + s.choice[other] * width, 1
        if side == 0:
            step = arrays.start[other + 1] - arrays.start[other]
            at = arrays.matrix[edge] + s.choice[other]
        for a in range(width):
            s.trial[a] += arrays.pool[at + a * step]


@njit_internal
def put(loads: Loads, s: State, node: int, option: int) -> None:
    """Change a node, and the loads."""
    for p in range(loads.first[node], loads.first[node + 1]):
        at = loads.block[p]
        amount = loads.use[at + option] - loads.use[at + s.choice[node]]
        if amount:
            _fill(s, loads.low[p], loads.high[p], amount)
    s.choice[node] = option


@njit_internal
def _link(loads: Loads, s: State, node: int, option: int) -> None:
    """Make `node` the next of the chain."""
    s.chain[s.counts[SIZE], 0], s.chain[s.counts[SIZE], 1] = node, s.choice[node]
    s.counts[SIZE] += 1
    s.stamp[node] = s.counts[STAMP]
    put(loads, s, node, option)


@njit_internal
def _extend_chain(arrays: Arrays, loads: Loads, s: State, head: int) -> None:
    """Add to the chain the neighbours of its nodes from `head` on that gain by another option."""
    while head < s.counts[SIZE]:
        node = s.chain[head, 0]
        head += 1
        for p in range(s.first[node], s.first[node + 1]):
            other = arrays.ends[s.near[p] // 2, 1 - s.near[p] % 2]
            # The last places of a chain are kept for repairs.
            if s.stamp[other] == s.counts[STAMP] or s.counts[SIZE] >= CHAIN - REPAIRS:
                continue
            _trial(arrays, s, other)
            option = _best_priced(arrays, s, other)
            if option != s.choice[other]:
                _link(loads, s, other, option)


@njit_internal
def _best_priced(arrays: Arrays, s: State, node: int) -> int:
    """The option with the least cost plus priced usage; the present one if none is better."""
    own, width = arrays.start[node], arrays.start[node + 1] - arrays.start[node]
    best = s.choice[node]
    least = s.trial[best] + s.memory_cost[own + best]
    for a in range(width):
        if s.trial[a] + s.memory_cost[own + a] < least:
            best, least = a, s.trial[a] + s.memory_cost[own + a]
    return int(best)


@njit_internal
def _make_room(arrays: Arrays, loads: Loads, s: State, row: int) -> bool:
    """Change the node that frees `row` at the least cost per unit; whether any can."""
    # The runs that cover a row hang at its leaf and at all places above it.
    over, members, place = s.over[1], 0, row + len(s.later)
    while place:
        members += s.begin[place + 1] - s.begin[place]
        place >>= 1
    stride = members // CANDIDATES + 1
    # Every stride-th member, beginning with another one for every chain.
    seen = stride - 1 - s.counts[STAMP] % stride
    best, option, ratio = -1, 0, np.inf
    place = row + len(s.later)
    while place:
        for q in range(s.begin[place], s.begin[place + 1]):
            seen += 1
            run = s.cover[q]
            node, at = s.owner[run], loads.block[run]
            if seen % stride or s.stamp[node] == s.counts[STAMP]:
                continue
            if loads.use[at + s.choice[node]] == 0:
                continue
            _trial(arrays, s, node)
            for a in range(arrays.start[node + 1] - arrays.start[node]):
                # More than what is over counts for nothing: the smallest change that suffices is
                # preferred.
                freed = min(over, loads.use[at + s.choice[node]] - loads.use[at + a])
                if freed > 0:
                    dearer = (s.trial[a] - s.trial[s.choice[node]]) / freed
                    if dearer < ratio:
                        best, option, ratio = node, a, dearer
        place >>= 1
    if best >= 0:
        _link(loads, s, best, option)
    return best >= 0


@njit_internal
def _repair(arrays: Arrays, loads: Loads, s: State) -> bool:
    """Make room until everything fits; whether it does."""
    row = fullest(s)
    while row >= 0:
        head = s.counts[SIZE]
        if head >= CHAIN or not _make_room(arrays, loads, s, row):
            return False
        _extend_chain(arrays, loads, s, head)
        row = fullest(s)
    return True


@njit_internal
def _undo(loads: Loads, s: State) -> None:
    while s.counts[SIZE]:
        s.counts[SIZE] -= 1
        put(loads, s, s.chain[s.counts[SIZE], 0], s.chain[s.counts[SIZE], 1])


@njit_internal
def _around(arrays: Arrays, s: State) -> float:
    """Cost of the chain's nodes and of all edges at them."""
    total = 0.0
    for k in range(s.counts[SIZE]):
        node = s.chain[k, 0]
        total += arrays.cost[arrays.start[node] + s.choice[node]]
        for p in range(s.first[node], s.first[node + 1]):
            edge, side = s.near[p] // 2, s.near[p] % 2
            other = arrays.ends[edge, 1 - side]
            # An edge inside the chain is counted at its lower node only.
            if s.stamp[other] == s.counts[STAMP] and other < node:
                continue
            i, j = (node, other) if side == 0 else (other, node)
            width = arrays.start[j + 1] - arrays.start[j]
            total += arrays.pool[arrays.matrix[edge] + s.choice[i] * width + s.choice[j]]
    return total


@njit_internal
def _exchange(s: State) -> None:
    """Swap the chain's options with those it has replaced."""
    for k in range(s.counts[SIZE]):
        node = s.chain[k, 0]
        s.chain[k, 1], s.choice[node] = s.choice[node], s.chain[k, 1]


@njit_internal
def _change(arrays: Arrays, s: State) -> float:
    """What the chain costs; what was there before is finite."""
    after = _around(arrays, s)
    # Choices only: loads stay those of the chain.
    _exchange(s)
    before = _around(arrays, s)
    _exchange(s)
    return float(after - before)


@njit_cached
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
        _link(loads, s, node, (s.choice[node] + 1 + int(draws[k, 1] * (width - 1))) % width)
        _extend_chain(arrays, loads, s, 0)
        # Repairs are not worth their time where the chain itself is forbidden.
        fits = _change(arrays, s) < np.inf and _repair(arrays, loads, s)
        change = _change(arrays, s)
        # Metropolis: accept with probability exp(-change / heat).
        if not fits or change > -heat * np.log(draws[k, 2]):
            _undo(loads, s)
            continue
        now += change
        if now < lowest:
            lowest = now
            best[:] = s.choice
    return lowest, now


@njit_cached
def repair_memory(arrays: Arrays, loads: Loads, s: State, most_chains: int) -> bool:
    """Make room, however dear, until everything fits or `most_chains` chains are used up."""
    for _ in range(most_chains):
        s.counts[SIZE] = 0
        s.counts[STAMP] += 1
        if _repair(arrays, loads, s):
            return True
    return False
