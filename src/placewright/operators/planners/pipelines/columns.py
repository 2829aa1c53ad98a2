"""A lower bound on the largest load around host memory, by column generation.

A *column* is a set of nodes that one device can have within a target load: its work, and what the
hyperedges cost that cross the set's border. A plan within the target gives each device a column,
and each node lies in one of them. So where prices y of nodes are found with

    sum over devices of the dearest column's price  <  sum over nodes of y

no plan is within the target. A linear program finds prices for which the columns known so far cost
least; the dearest column at these prices is added to it; and again (Gilmore, Gomory, Oper. Res. 9,
1961, doi 10.1287/opre.9.6.849; the bound is Farley's, Oper. Res. 38, 1990,
doi 10.1287/opre.38.5.922). Prices are drawn towards the best ones so far (Pessoa, Sadykov, Uchoa,
Vanderbeck, INFORMS J. Comput. 30, 2018, doi 10.1287/ijoc.2017.0784). Where the known columns
themselves cover all nodes, whatever the prices, the target is not refuted.

The dearest column comes from dynamic programming over the nodes, one after another. A state has

    open hyperedges   each with members inside of the set, outside of it, or both
    cell of the load  of which the least load and the highest price are kept: no column is lost,
                      and one may seem lighter than it is

Graphs of models are long and narrow: of thousands of hyperedges few are open at a time. Only one
device is looked at, so that states are few, however many devices there are. Memories are not looked
at. Targets, states and order are ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_internal, njit_nogil
from placewright.operators.load_bounds import load_bound
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.operators.planners.pipelines.slots import give_way
from placewright.solvers.programs import LinearProgram

STARTS = 8
"""Orders of the nodes that are tried, each from another first one."""

MOST_NODES = 3_000
"""Above them the order takes too long."""

MOST_STATES = 100_000
"""Of all nodes together, without their loads: hyperedges are left out until there are no more."""

SMALL = 3e-4
"""Share of the value: hyperedges that cost less are left out first, and then twice as costly
ones."""

EFFORTS = ((250, 5.0), (500, 20.0), (1_000, 80.0), (2_000, 320.0), (4_000, 1280.0))
"""Cells of the load, and how many times its first price a node's price may be: the next ones where
a target is not refuted with these."""

MOST_ENTRIES = 60_000_000
"""States of all nodes, times cells."""

DRAWN = 0.8
"""Share of the best prices so far in those that are tried."""

LIGHTER = (1.0, 0.97, 0.9)
"""Shares of the target: a column is taken from those within each."""

NEXT = 0.5
"""The next target, in shares from the bound to what is not refuted."""

CLOSE = 1e-3
"""Share of the value to which the two come."""

ROUNDING = 1e-9
"""By what share a bound is lowered: sums of loads are rounded."""

Origins: TypeAlias = npt.NDArray[np.int32]


@by_reference
class Steps(NamedTuple):
    """How each state goes on with the next node, the states of all nodes one after another.

    Attributes
    ----------
    first
        Shape (N + 1,), of each node's states; the last one is the end.
    to, pays
        Shape (states, 2), the next state's number among those of the next node, and the bytes that
        then cross the border, with the node outside and inside.
    """

    first: IntArray
    to: IntArray
    pays: FloatArray


@by_reference
class Loads(NamedTuple):
    """What a device would have: shapes (N,) in the order of steps, and (2,).

    `limits`: the target in seconds, and those of a byte that crosses the border.
    """

    work: FloatArray
    price: FloatArray
    limits: FloatArray


@by_reference
class States(NamedTuple):
    """Shape (states, cells): the highest price and the least load."""

    price: FloatArray
    load: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Nodes that a device of a kind may have, and what it has to do for them in seconds."""

    kind: int
    inside: IntArray
    load_s: float


@contextmanager
def proving(
    c: Contraction, kinds: IntArray, value_s: float, *, deadline_s: float
) -> Iterator[Callable[[], float]]:
    """`column_bound` in another thread until the block ends, or until what is yielded is called.

    That ends the search and returns the bound.
    """
    halt = np.zeros(1, dtype=np.int64)
    column_bound(c, kinds, value_s, deadline_s=0.0, halt=halt)  # compiles, in this thread
    with ThreadPoolExecutor(1, initializer=give_way) as pool:
        task = pool.submit(column_bound, c, kinds, value_s, deadline_s=deadline_s, halt=halt)

        def bound() -> float:
            halt[0] = 1
            return task.result()

        try:
            yield bound
        finally:
            halt[0] = 1


def column_bound(
    c: Contraction, kinds: IntArray, value_s: float, *, deadline_s: float, halt: IntArray
) -> float:
    """The largest target that was refuted, in seconds; at least the load bound.

    Parameters
    ----------
    c
        Without copies, clusters and passes: slots are devices.
    kinds
        Kind of each slot, ascending.
    value_s
        Of a plan: targets lie below it.
    halt
        Shape (1,); another thread ends the search by writing a one.
    """
    bound, weight = load_bound(c.work_s[:, kinds], c.resident_bytes, np.full(len(kinds), np.inf))
    if weight is None or c.nodes > MOST_NODES or value_s <= bound:
        return bound
    search = _Search(c, kinds, weight, value_s, deadline_s, halt)
    search.bound = bound
    open_s = value_s
    while search.bound < open_s - CLOSE * value_s and not search.over():
        target = search.bound + NEXT * (open_s - search.bound)
        if not search.refute(target):
            open_s = target
    return max(bound, search.bound * (1 - ROUNDING))


class _Search:
    """Prices and columns for one target after another.

    Attributes
    ----------
    bound
        The largest target that was refuted so far.
    """

    bound = 0.0

    def __init__(
        self,
        c: Contraction,
        kinds: IntArray,
        weight: FloatArray,
        value_s: float,
        deadline_s: float,
        halt: IntArray,
    ) -> None:
        self._deadline_s, self._halt = deadline_s, halt
        self._kinds, place, counts = np.unique(kinds, return_index=True, return_counts=True)
        self._counts = counts.astype(np.float64)
        self._c, self._order, self._steps = _narrow(c, kinds, value_s, deadline_s)
        price = (weight[place] * c.work_s[:, self._kinds]).min(axis=1)
        self._price = price / price.sum() if price.any() else np.full(c.nodes, 1 / c.nodes)
        self._usual = np.maximum(self._price, 0.05 / c.nodes)
        self._sizes = np.array([len(each) for each in self._c.members], dtype=np.int64)
        self._edge = np.repeat(np.arange(len(self._sizes)), self._sizes)
        self._member = np.array(list(chain.from_iterable(self._c.members)), dtype=np.int64)
        self._columns, self._effort = list[Column](), 0

    def over(self) -> bool:
        """Whether there is no time left, or nobody waits any more."""
        return bool(self._halt[0]) or time.perf_counter() >= self._deadline_s

    def refute(self, target_s: float) -> bool:
        """Whether no plan is within the target; false where that is not known."""
        while not self.over() and self._effort < len(EFFORTS):
            cells, times = EFFORTS[self._effort]
            cells = max(2, min(cells, MOST_ENTRIES // int(self._steps.first[-1])))
            if self._tried(target_s, cells, times * self._usual):
                break
            self._effort += 1
        self._effort = min(self._effort, len(EFFORTS) - 1)
        return self.bound >= target_s

    def _tried(self, target_s: float, cells: int, most: FloatArray) -> bool:
        """Whether there is no more to find out: the target is refuted, or columns cover all nodes.

        Not where columns do that which only seem to be within the target, or where prices, at most
        `most`, would have to be higher.
        """
        master = _Master(self._counts, most)
        for column in self._columns:
            if column.load_s <= target_s:
                master.add(column)
        price, best, least, true = self._price, self._price, math.inf, True
        while not self.over():
            dearest, found = self._dearest(price, target_s, cells)
            if dearest < least:
                least, best = dearest, price
            if self.bound >= target_s:
                break
            for column in found:
                true &= column.load_s <= target_s * (1 + ROUNDING)
                master.add(column)
            self._columns += found
            cost, price = master.solve()
            if cost >= 1 - CLOSE / 10:
                return true and bool((price < most).all())
            price = DRAWN * best + (1 - DRAWN) * price
        self._price = best
        return True

    def _dearest(
        self, price: FloatArray, target_s: float, cells: int
    ) -> tuple[float, list[Column]]:
        """What the dearest columns of all devices cost, of all nodes; columns near them.

        Raises the bound to the largest target for which that is below one.
        """
        curves, found = np.zeros(cells), list[Column]()
        states = int(self._steps.first[-1])
        before = np.empty((states + 1, cells), dtype=np.int32)
        shape = int(np.diff(self._steps.first).max()), cells
        now, then = (States(np.empty(shape), np.empty(shape)) for _ in range(2))
        for k, kind in enumerate(self._kinds.tolist()):
            work = np.ascontiguousarray(self._c.work_s[self._order, kind])
            limits = np.array([target_s, self._c.host_rate[kind]])
            loads = Loads(work, price[self._order], limits)
            curve = dearest_columns(self._steps, loads, now, then, before, self._halt)
            if self._halt[0]:  # what it left unwritten would be read below
                return math.inf, []
            curves += self._counts[k] * np.maximum.accumulate(curve)
            for share in LIGHTER:
                cell = int(curve[: max(1, int(share * cells))].argmax())
                inside = self._order[traced(self._steps, before, cell)]
                found.append(Column(k, inside, self._load_s(kind, inside)))
        over = np.flatnonzero(curves >= price.sum() * (1 - ROUNDING))
        refuted = target_s * (over[0] / cells if len(over) else 1.0)
        self.bound = max(self.bound, refuted)
        return float(curves[-1] / price.sum()), found

    def _load_s(self, kind: int, inside: IntArray) -> float:
        chosen = np.bincount(inside, minlength=self._c.nodes)
        there = np.bincount(self._edge, chosen[self._member], len(self._sizes))
        moved = self._c.moved_bytes[(there > 0) & (there < self._sizes)].sum()
        return float(self._c.work_s[inside, kind].sum() + moved * self._c.host_rate[kind])


class _Master:
    """Prices of nodes, which are one together, for which known columns cost least.

    Parameters
    ----------
    counts
        Devices of each kind.
    most
        Of each node's price.
    """

    def __init__(self, counts: FloatArray, most: FloatArray) -> None:
        self._program = LinearProgram(stoppable=False)
        self._price = self._program.columns(len(most), high=most, name="price")
        self._most = self._program.columns(len(counts), cost=counts)
        one = self._program.rows(low=1.0, high=1.0)
        self._program.enter(one, self._price, 1.0)

    def add(self, column: Column) -> None:
        """No column of a kind is dearer than the dearest one of that kind."""
        row = self._program.rows(low=0.0)
        self._program.enter(row, self._most[column.kind], 1.0)
        self._program.enter(row, self._price[column.inside], -1.0)

    def solve(self) -> tuple[float, FloatArray]:
        """What the dearest columns of all devices cost at least, and the prices."""
        found = self._program.solve()
        return found.value, found["price"]


def _narrow(
    c: Contraction, kinds: IntArray, value_s: float, deadline_s: float
) -> tuple[Contraction, IntArray, Steps]:
    """Without the cheapest hyperedges, as few as there can be; an order of nodes, and the steps."""
    least = SMALL * value_s
    while True:
        kept = _without_small(c, kinds, least)
        order = narrow_order(kept, deadline_s)
        steps = transitions(kept, order)
        if steps is not None:
            return kept, order, steps
        least *= 2


def _without_small(c: Contraction, kinds: IntArray, least_s: float) -> Contraction:
    """Without hyperedges that cost less on every device: no load is higher."""
    kept = np.flatnonzero(c.moved_bytes * c.host_rate[kinds].max() >= least_s)
    return replace(
        c,
        members=tuple(c.members[e] for e in kept.tolist()),
        moved_bytes=c.moved_bytes[kept],
        backward_bytes=c.backward_bytes[kept],
    )


def narrow_order(c: Contraction, deadline_s: float = np.inf) -> IntArray:
    """An order of nodes in which few hyperedges are open.

    Of several first nodes, as many as there is time for but at least one, the one with the least
    sum of 4^open. Next comes what opens least and closes most, of equals what touches the hyperedge
    that was touched longest ago.
    """
    touch, best, least = _touched(c), np.arange(c.nodes), np.inf
    for first in range(0, c.nodes, max(1, c.nodes // STARTS)):
        order, opened = _order_from(c, touch, first)
        total = float(np.sum(4.0 ** np.minimum(opened, 500)))
        if total < least:
            best, least = order, total
        if time.perf_counter() >= deadline_s:
            break
    return best


def _touched(c: Contraction) -> list[list[int]]:
    """The hyperedges of each node."""
    touch: list[list[int]] = [[] for _ in range(c.nodes)]
    for e, members in enumerate(c.members):
        for v in members:
            touch[v].append(e)
    return touch


def _order_from(c: Contraction, touch: list[list[int]], first: int) -> tuple[IntArray, IntArray]:
    """The order from a first node, and how many hyperedges are open after each node."""
    left, last = [len(members) for members in c.members], [-1] * len(c.members)
    waiting, near, order, opened = set(range(c.nodes)), {first}, list[int](), list[int]()
    count = 0

    def change(v: int) -> tuple[int, int, int]:
        opens = sum(last[e] < 0 for e in touch[v]) - sum(left[e] == 1 for e in touch[v])
        return opens, min((last[e] for e in touch[v] if last[e] >= 0), default=c.nodes), v

    while waiting:
        v = min(near or waiting, key=change)
        count += change(v)[0]
        near.discard(v)
        waiting.discard(v)
        order.append(v)
        opened.append(count)
        for e in touch[v]:
            left[e], last[e] = left[e] - 1, len(order)
            near.update(u for u in c.members[e] if u in waiting)
    return np.array(order, dtype=np.int64), np.array(opened, dtype=np.int64)


INSIDE, OUTSIDE = 1, 2
"""Members that an open hyperedge has in the set and out of it, as bits."""


def transitions(c: Contraction, order: IntArray) -> Steps | None:
    """The states before each node, and how they go on; ``None``: there are too many."""
    touch, left = _touched(c), [len(members) for members in c.members]
    opened, states = list[int](), [()]
    first, to, pays = [0], list[list[int]](), list[list[float]]()
    for v in order.tolist():
        places = opened + [e for e in touch[v] if e not in opened]
        fresh = (0,) * (len(places) - len(opened))
        of_v = [(places.index(e), float(c.moved_bytes[e])) for e in touch[v]]
        for e in touch[v]:
            left[e] -= 1
        kept, following = [k for k, e in enumerate(places) if left[e] > 0], dict[Any, int]()
        for state in states:
            ends = [_side(state + fresh, of_v, side) for side in (OUTSIDE, INSIDE)]
            keys = [tuple(after[k] for k in kept) for after, _ in ends]
            to.append([following.setdefault(key, len(following)) for key in keys])
            pays.append([paid for _, paid in ends])
        first.append(first[-1] + len(states))
        if first[-1] + len(following) > MOST_STATES:
            return None
        states, opened = list(following), [places[k] for k in kept]
    return Steps(np.array(first), np.array(to), np.array(pays))


def _side(
    state: tuple[int, ...], of_node: list[tuple[int, float]], side: int
) -> tuple[list[int], float]:
    """A state after a node is put on one side, and the bytes that cross the border from now on."""
    after, paid = list(state), 0.0
    for k, moved in of_node:
        paid += moved if after[k] == INSIDE + OUTSIDE - side else 0.0
        after[k] |= side
    return after, paid


@njit_nogil
def dearest_columns(
    steps: Steps, loads: Loads, now: States, then: States, before: Origins, halt: IntArray
) -> FloatArray:
    """The highest price of a column in each cell of the load, minus infinity where there is none.

    `before`: shape (states + 1, cells), receives where each state comes from, as `traced` reads it.
    """
    now.price[0], now.load[0] = -np.inf, np.inf
    now.price[0, 0] = now.load[0, 0] = 0.0
    for v in range(len(loads.work)):
        if halt[0]:
            break
        _extend(steps, loads, now, then, before, v)
        now, then = then, now
    curve: FloatArray = now.price[0].copy()
    return curve


@njit_internal
def _extend(steps: Steps, loads: Loads, now: States, then: States, before: Origins, v: int) -> None:
    """Put node v inside and outside of each column."""
    cells, start, end = before.shape[1], steps.first[v], steps.first[v + 1]
    limit_s, rate = loads.limits
    following = steps.first[v + 2] - end if v + 2 < len(steps.first) else 1
    then.price[:following], then.load[:following] = -np.inf, np.inf
    each = cells / limit_s
    for s in range(end - start):
        for side in range(2):
            adds_s = steps.pays[start + s, side] * rate
            adds_s += loads.work[v] if side else 0.0  # which may be infinite
            to, gains = steps.to[start + s, side], side * loads.price[v]
            for cell in range(cells):
                if now.load[s, cell] == np.inf:
                    continue
                load_s = now.load[s, cell] + adds_s
                if load_s > limit_s:
                    break
                price, at = now.price[s, cell] + gains, min(int(load_s * each), cells - 1)
                then.load[to, at] = min(then.load[to, at], load_s)
                if price > then.price[to, at]:
                    then.price[to, at] = price
                    before[end + to, at] = 2 * (s * cells + cell) + side


def traced(steps: Steps, before: Origins, cell: int) -> IntArray:
    """Places in the order of the nodes inside of the column that ends in this cell."""
    inside, state = list[int](), 0
    for v in range(len(steps.first) - 2, -1, -1):
        came, side = divmod(int(before[steps.first[v + 1] + state, cell]), 2)
        state, cell = divmod(came, before.shape[1])
        if side:
            inside.append(v)
    return np.array(inside[::-1], dtype=np.int64)
