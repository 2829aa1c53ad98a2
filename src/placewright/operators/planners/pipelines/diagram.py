"""A lower bound on the largest load around host memory, by a relaxed decision diagram.

Nodes are placed one after another; a layer holds the states that some placement of those before
leads to:

    load of each device        so far
    open hyperedges            which devices have some of their members

A state is dropped where a load is over the target, or where the loads, weighted by the load
bound's weights, leave too little for the work to come. A layer that is empty proves that no
placement reaches the target. Where a layer grows too wide, states with the same open hyperedges
and about the same loads become one, with the least of each load: no placement is lost, and the
bound is only weaker. Relaxed diagrams: Bergman, Cire, van Hoeve, Hooker, Decision Diagrams for
Optimization, 2016, doi 10.1007/978-3-319-42849-9, chapter 4. The states, and targets, are ours.

Graphs of models are long and narrow: a few hyperedges are open at a time, where branching has to
choose among all nodes. Devices of a kind are sorted by load. Memories are not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_internal, njit_nogil
from placewright.operators.load_bounds import load_bound
from placewright.operators.planners.pipelines.contraction import Contraction

WIDTH = 200_000
"""States of a layer."""

STARTS = 8
"""Orders of the nodes that are tried, each from another first one."""

MOST_NODES = 3_000
"""Above them the order takes too long."""

BITS = 63
"""Devices times open hyperedges that a state has room for."""

NEXT = 0.3
"""The next target, in shares from the bound to the value: what a target takes grows by about
three times for each two percent of it."""

SMALL = 3e-4
"""Share of the value: hyperedges that cost less are left out. They take little from the bound, and
what they keep apart is ten times as many states."""

CLOSE = 1e-3
"""Share of the value to which the bound comes."""

FINE = 1e-7
"""Least size of a cell in which states become one, in weighted shares of the target."""

COARSE = 0.01
"""Size of cells at which an attempt is given up: hardly anything would be left of the target."""

ROUNDING = 1e-9
"""By what share a bound is lowered: sums of loads are rounded."""

STOPPED, FULL = -1, -2


@by_reference
class Layer(NamedTuple):
    """How a node extends states.

    Attributes
    ----------
    work
        Shape (m,), seconds of the node, ``inf`` where not allowed.
    cost
        Shape (touched, m), seconds of what the hyperedges cost each device.
    touched
        Their places among the open ones.
    after
        Where each open hyperedge is afterwards, -1 where it is closed.
    kind, weight
        Shape (m,), of devices; those of a kind are neighbours.
    limits
        The target, and what the weighted loads may be before the work to come.
    """

    work: FloatArray
    cost: FloatArray
    touched: IntArray
    after: IntArray
    kind: IntArray
    weight: FloatArray
    limits: FloatArray


@by_reference
class States(NamedTuple):
    """States of a layer: shape (width,), devices of open hyperedges, and (width, m), loads."""

    devices: IntArray
    load: FloatArray


@contextmanager
def proving(
    c: Contraction, kinds: IntArray, value_s: float, *, deadline_s: float
) -> Iterator[Callable[[], float]]:
    """`diagram_bound` in another thread until the block ends, or until what is yielded is called.

    That ends the search and returns the bound.
    """
    halt = np.zeros(1, dtype=np.int64)
    diagram_bound(c, kinds, value_s, deadline_s=0.0, halt=halt)  # compiles, in this thread
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(diagram_bound, c, kinds, value_s, deadline_s=deadline_s, halt=halt)

        def bound() -> float:
            halt[0] = 1
            return task.result()

        try:
            yield bound
        finally:
            halt[0] = 1


def diagram_bound(
    c: Contraction, kinds: IntArray, value_s: float, *, deadline_s: float, halt: IntArray
) -> float:
    """The largest target that was refuted, or what is left of a weaker diagram, in seconds.

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
    if weight is None or c.nodes > MOST_NODES:
        return bound
    c = _without_small(c, kinds, SMALL * value_s)
    order, share = narrow_order(c, deadline_s), NEXT
    while bound < value_s * (1 - CLOSE) and share > 0.1:
        target = bound + share * (value_s - bound)
        reached = _reached(c, kinds, weight, order, target, deadline_s, halt)
        if reached is None:
            break
        share = NEXT if reached >= target else share / 2
        bound = max(bound, min(reached, target) * (1 - ROUNDING))
    return bound


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


def _reached(
    c: Contraction,
    kinds: IntArray,
    weight: FloatArray,
    order: IntArray,
    target_s: float,
    deadline_s: float,
    halt: IntArray,
) -> float | None:
    """The least largest load in the last layer, ``inf`` where there is none, 0 without room.

    ``None``: there is no time.
    """
    work, m = c.work_s[:, kinds], len(kinds)
    to_come = np.append(np.cumsum((weight * work).min(axis=1)[order][::-1])[::-1], 0.0)
    left = np.array([len(members) for members in c.members])
    touch = _touched(c)
    now, then = (States(np.zeros(WIDTH, dtype=np.int64), np.zeros((WIDTH, m))) for _ in range(2))
    index = np.empty(1 << (2 * WIDTH - 1).bit_length(), dtype=np.int64)
    cell = np.array([FINE * target_s])
    rows, opened = 1, list[int]()
    for at, v in enumerate(order.tolist()):
        places = opened + [e for e in touch[v] if e not in opened]
        left[touch[v]] -= 1
        opened = [e for e in places if left[e] > 0]
        if len(places) * m > BITS:
            return 0.0
        layer = Layer(
            np.ascontiguousarray(work[v]),
            c.moved_bytes[touch[v]][:, None] * c.host_rate[kinds],
            np.array([places.index(e) for e in touch[v]], dtype=np.int64),
            np.array([opened.index(e) if e in opened else -1 for e in places], dtype=np.int64),
            kinds,
            weight,
            np.array([target_s, target_s * weight.sum() * (1 + 1e-12) - to_come[at + 1]]),
        )
        cell[0] = max(FINE * target_s, cell[0] / 4)
        rows = int(extend(layer, now, rows, then, index, cell, halt))
        now, then = then, now
        if rows == STOPPED or time.perf_counter() >= deadline_s:
            return None
        if rows in (0, FULL):
            return 0.0 if rows else float("inf")
    return float(now.load[:rows].max(axis=1).min())


@njit_nogil
def extend(
    layer: Layer,
    now: States,
    rows: int,
    then: States,
    index: IntArray,
    cell: FloatArray,
    halt: IntArray,
) -> int:
    """Write the states of the next layer; their number, or `STOPPED`, or `FULL` of unlike ones.

    `index`: room for a hash table, a power of two. `cell`: shape (1,), the size of cells, which
    grows where the states do not fit.
    """
    m = len(layer.work)
    load, name = np.empty(m), np.empty(m, dtype=np.int64)
    index[:] = -1
    count = 0
    for s in range(rows):
        if halt[0]:
            return STOPPED
        for d in range(m):
            if layer.work[d] == np.inf:
                continue
            devices = _place(layer, now, s, d, load)
            total, most = 0.0, 0.0
            for q in range(m):
                total += layer.weight[q] * load[q]
                most = max(most, load[q])
            if most > layer.limits[0] or total > layer.limits[1]:
                continue
            devices = _sorted(layer, devices, load, name)
            count = _insert(layer, then, count, devices, load, cell[0], index)
            while count == len(then.devices):
                if cell[0] > COARSE * layer.limits[0]:
                    return FULL
                cell[0] *= 2.0
                count = _merged(layer, then, count, cell[0], load, index)
    return count


@njit_internal
def _place(layer: Layer, now: States, s: int, d: int, load: FloatArray) -> int:
    """Put the node of state s on device d: its loads, and the devices of what stays open."""
    m = len(load)
    for q in range(m):
        load[q] = now.load[s, q]
    load[d] += layer.work[d]
    devices, every = now.devices[s], (1 << m) - 1
    for j in range(len(layer.touched)):
        shift = layer.touched[j] * m
        there = (devices >> shift) & every
        if there != 0 and not (there >> d) & 1:
            load[d] += layer.cost[j, d]
            for q in range(m):
                if there == 1 << q:  # it had all members so far, and pays from now on
                    load[q] += layer.cost[j, q]
        devices |= 1 << (shift + d)
    kept = 0
    for j in range(len(layer.after)):
        if layer.after[j] >= 0:
            kept |= ((devices >> (j * m)) & every) << (layer.after[j] * m)
    return kept


@njit_internal
def _sorted(layer: Layer, devices: int, load: FloatArray, name: IntArray) -> int:
    """Rename devices of a kind by load; returns the open hyperedges under the new names."""
    m, moved = len(load), False
    for q in range(m):
        name[q] = q
    for a in range(1, m):
        b = a
        while b > 0 and layer.kind[b] == layer.kind[b - 1] and load[b] < load[b - 1]:
            load[b], load[b - 1] = load[b - 1], load[b]
            name[b], name[b - 1] = name[b - 1], name[b]
            b, moved = b - 1, True
    if not moved:
        return devices
    renamed = 0
    for j in range(len(layer.after)):
        for q in range(m):
            renamed |= ((devices >> (j * m + name[q])) & 1) << (j * m + q)
    return renamed


@njit_internal
def _insert(
    layer: Layer,
    then: States,
    count: int,
    devices: int,
    load: FloatArray,
    cell: float,
    index: IntArray,
) -> int:
    """Add a state, or lower the loads of the one in its cell; the number of states."""
    m, mask = len(load), len(index) - 1
    at = devices * 0x9E3779B97F4A7C1
    for q in range(m):
        at = (at ^ (at >> 29)) * 0x1F58476D1CE4E5B + int(load[q] * layer.weight[q] / cell)
    at = (at ^ (at >> 32)) & mask
    while index[at] >= 0:
        other = index[at]
        same = then.devices[other] == devices
        for q in range(m):
            if not same:
                break
            share = layer.weight[q] / cell
            same = int(then.load[other, q] * share) == int(load[q] * share)
        if same:
            for q in range(m):
                then.load[other, q] = min(then.load[other, q], load[q])
            return count
        at = (at + 1) & mask
    index[at], then.devices[count] = count, devices
    for q in range(m):
        then.load[count, q] = load[q]
    return count + 1


@njit_internal
def _merged(
    layer: Layer, then: States, count: int, cell: float, load: FloatArray, index: IntArray
) -> int:
    """Sort the states into larger cells; the number that is left."""
    index[:] = -1
    kept = 0
    for s in range(count):
        for q in range(len(load)):
            load[q] = then.load[s, q]
        kept = _insert(layer, then, kept, then.devices[s], load, cell, index)
    return kept
