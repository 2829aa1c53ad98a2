"""Down-sets of a contracted forward graph, and the best chain of them.

The chain is found by dynamic programming, compiled.
``best[s, I]`` is the least max load with which the devices counted by state s can hold ideal I:
the minimum over kinds k and ideals J inside I of max(best[s - k, J], load of I - J on kind k).
With clusters, what stays in one is paid as if it left: the result is then an upper bound.
All J inside I are met by a walk that takes away one last node at a time, so that the load follows
in a few steps; a branch ends where its work or its bytes are too much for every kind. What a stage
holds is kept for every step of the walk: going back takes nothing off a sum, so no number, however
large, rounds the others away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached, njit_inline
from placewright.operators.planners.pipelines.contraction import Contraction

MOST_CELLS = 40_000_000
"""States times ideals of a table: 24 bytes each."""
_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class IdealChain:
    """Stages of the nodes, shape (N,), the kind of each stage, the largest load."""

    value_s: float
    stage: IntArray
    kinds: tuple[int, ...]


class NoTimeLeftError(Exception):
    """The deadline came before the table was full."""


def best_chain(
    c: Contraction, lattice: IdealLattice, limit: float, deadline_s: float = float("inf")
) -> IdealChain | None:
    """The least max load of any chain in the lattice, ``None`` if none is within `limit`.

    Raises `NoTimeLeftError` (at the deadline).
    """
    states, loads = states_of(c.counts), loads_of(c)
    ideals = len(lattice.offsets) - 1
    best = np.full((len(states.digits), ideals), np.inf)
    # State s means at most these devices: with nothing to hold, none of them is loaded.
    best[:, 0] = 0.0
    came_from = np.zeros(best.shape, dtype=np.int64)
    came_by = np.zeros(best.shape, dtype=np.int64)
    seen = np.full(ideals, -1)
    for first in range(1, ideals, _BATCH):
        last = min(first + _BATCH, ideals)
        fill(lattice, loads, states, limit, first, last, best, came_from, came_by, seen)
        if time.perf_counter() > deadline_s:
            raise NoTimeLeftError
    state = int(best[:, -1].argmin())
    if not np.isfinite(best[state, -1]):
        return None
    value, at = float(best[state, -1]), ideals - 1
    from_end, kinds = np.full(c.nodes, -1), list[int]()
    while at > 0:
        below, kind = int(came_from[state, at]), int(came_by[state, at])
        from_end[_between(lattice, at, below)] = len(kinds)
        kinds.append(kind)
        state, at = state - int(loads.taken[kind]), below
    return IdealChain(value, len(kinds) - 1 - from_end, tuple(kinds[::-1]))


def lattice_of(c: Contraction, most: int, deadline_s: float = float("inf")) -> IdealLattice | None:
    """All ideals of the forward graph; ``None`` where there are more than `most`, or no time."""
    before = [0] * c.nodes
    for a, b in c.edges.tolist():
        # Ideals are bit masks of nodes; Python's whole numbers have as many bits as it takes.
        before[b] |= 1 << a
    position, layer = {0: 0}, [0]
    offsets, below, removed = [0, 0], list[int](), list[int]()
    for _ in range(c.nodes):
        links: dict[int, list[tuple[int, int]]] = {}
        for ideal in layer:
            for v in _addable(ideal, before, c.nodes):
                links.setdefault(ideal | 1 << v, []).append((position[ideal], v))
            if len(position) + len(links) > most or time.perf_counter() > deadline_s:
                return None
        # Layer by layer: ideals with one node more, each with all ways down from it.
        layer = list(links)
        for ideal, parts in links.items():
            position[ideal] = len(position)
            below += [part[0] for part in parts]
            removed += [part[1] for part in parts]
            offsets.append(len(below))
    return IdealLattice(*(np.array(x, dtype=np.int64) for x in (offsets, below, removed)))


def _addable(ideal: int, before: list[int], count: int) -> Iterator[int]:
    """Nodes outside whose producers are all inside."""
    left = ~ideal & ((1 << count) - 1)
    while left:
        low = left & -left
        v = low.bit_length() - 1
        if before[v] & ~ideal == 0:
            yield v
        left ^= low


def _between(lattice: IdealLattice, top: int, bottom: int) -> IntArray:
    """The nodes of `top` that are not in `bottom`."""
    return np.setdiff1d(_nodes(lattice, top), _nodes(lattice, bottom))


def _nodes(lattice: IdealLattice, ideal: int) -> IntArray:
    found = []
    while ideal > 0:
        found.append(int(lattice.removed[lattice.offsets[ideal]]))
        ideal = int(lattice.below[lattice.offsets[ideal]])
    return np.array(found, dtype=np.int64)


LARGEST = float(np.finfo(np.float64).max)
"""Seconds; more is ``inf``, which says that it cannot be."""


class IdealLattice(NamedTuple):
    """Ideals, smaller ones first, the empty one at 0, the full one last.

    `offsets`, `below`, `removed`: CSR: the ideals that lack one node of this one, and which.
    """

    offsets: IntArray
    below: IntArray
    removed: IntArray


class Loads(NamedTuple):
    """A contraction's arrays as the kernel reads them; ``work`` is ``inf`` where not allowed.

    ``taken[k]`` is what a stage of kind k adds to the number of a state.
    """

    work: FloatArray
    resident: FloatArray
    memory: FloatArray
    rate: FloatArray
    touch_offsets: IntArray
    touched: IntArray
    sizes: IntArray
    moved: FloatArray
    pool: IntArray
    copies: IntArray
    taken: IntArray


class States(NamedTuple):
    """Counts of used devices per pool as one number: ``sum(count[p] * stride[p])``."""

    digits: IntArray
    stride: IntArray


def loads_of(c: Contraction) -> Loads:
    """Hyperedges by node."""
    pairs = [(v, e) for e, members in enumerate(c.members) for v in members]
    by_node = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return Loads(
        work=c.work_s,
        resident=c.resident_bytes,
        memory=c.memory_bytes,
        rate=c.host_rate,
        touch_offsets=np.searchsorted(by_node[:, 0], np.arange(c.nodes + 1)).astype(np.int64),
        touched=np.ascontiguousarray(by_node[:, 1]),
        sizes=np.array([len(members) for members in c.members], dtype=np.int64),
        moved=c.moved_bytes,
        pool=np.ascontiguousarray(c.pool),
        copies=np.ascontiguousarray(c.copies),
        taken=states_of(c.counts).stride[c.pool] * c.copies,
    )


def states_of(counts: tuple[int, ...]) -> States:
    """Every way to use up to `counts` devices of each pool."""
    # Mixed radix: digit p of a state's number counts used devices of pool p.
    sizes = np.array(counts) + 1
    stride = np.concatenate([[1], np.cumprod(sizes)[:-1]]).astype(np.int64)
    numbers = np.arange(int(np.prod(sizes)))
    digits = (numbers[:, None] // stride) % sizes
    return States(np.ascontiguousarray(digits, dtype=np.int64), stride)


def chain(order: IntArray) -> IdealLattice:
    """The lattice of a line: its ideals are its prefixes."""
    count = len(order)
    offsets = np.concatenate([[0], np.arange(count + 1)]).astype(np.int64)
    return IdealLattice(offsets, np.arange(count), np.asarray(order, dtype=np.int64))


@njit_cached
def fill(
    lattice: IdealLattice,
    loads: Loads,
    states: States,
    limit: float,
    first: int,
    last: int,
    best: FloatArray,
    came_from: IntArray,
    came_by: IntArray,
    seen: IntArray,
) -> None:
    """Fill columns `first` to `last` of `best` with choices that load no device above `limit`."""
    nodes, kinds = loads.work.shape
    inside = np.zeros(len(loads.sizes), dtype=np.int64)
    work, load = np.zeros((nodes + 1, kinds)), np.zeros(kinds)
    held, moved, lost = np.zeros(nodes + 1), np.zeros(nodes + 1), np.zeros(nodes + 1)
    limit = min(limit, LARGEST)
    stack = np.zeros(nodes + 1, dtype=np.int64)
    cursor = np.zeros(nodes + 1, dtype=np.int64)
    # A depth-first walk from `ideal` down: `stack` has the ideals on the way, `cursor` where each
    # of them goes on. Row `depth` of `work`, `held`, `moved` and `lost` is what the stage holds
    # that was taken off `ideal` so far.
    for ideal in range(first, last):
        inside[:] = 0
        depth = 0
        stack[0], cursor[0] = ideal, lattice.offsets[ideal]
        while depth >= 0:
            at = stack[depth]
            # All below `at` is done: put the node back whose removal led here.
            if cursor[depth] == lattice.offsets[at + 1]:
                depth -= 1
                if depth >= 0:
                    v = lattice.removed[cursor[depth] - 1]
                    for x in range(loads.touch_offsets[v], loads.touch_offsets[v + 1]):
                        inside[loads.touched[x]] -= 1
                continue
            step = cursor[depth]
            cursor[depth] += 1
            below, v = lattice.below[step], lattice.removed[step]
            # Each ideal below is met once, whichever way leads to it: the stage is the same set.
            if seen[below] == ideal:
                continue
            seen[below] = ideal
            more = depth + 1
            held[more] = held[depth] + loads.resident[v]
            open_kinds = 0
            for k in range(kinds):
                work[more, k] = work[depth, k] + loads.work[v, k]
                if work[more, k] <= limit and held[more] <= loads.memory[k]:
                    open_kinds += 1
            # Work and bytes only grow further down, so that no kind opens again. What is moved may
            # shrink, and ends no branch.
            if open_kinds == 0:
                continue
            total, rest = moved[depth], lost[depth]
            for x in range(loads.touch_offsets[v], loads.touch_offsets[v + 1]):
                e = loads.touched[x]
                # A hyperedge is paid for while some of its members, and not all, are in the stage.
                if inside[e] == 0:
                    total, rest = _plus(total, rest, loads.moved[e])
                inside[e] += 1
                if inside[e] == loads.sizes[e]:
                    total, rest = _plus(total, rest, -loads.moved[e])
            moved[more], lost[more] = total, rest
            for k in range(kinds):
                load[k] = work[more, k] + (total + rest) * loads.rate[k]
                if held[more] > loads.memory[k] or load[k] > limit:
                    load[k] = np.inf
            _relax(states, loads, load, ideal, below, best, came_from, came_by)
            depth = more
            stack[depth], cursor[depth] = below, lattice.offsets[below]


@njit_inline
def _plus(total: float, lost: float, x: float) -> tuple[float, float]:
    """One more term of a sum, and of what rounding has lost of it (Knuth's two-sum).

    A hyperedge far larger than the rest comes and goes, and leaves the rest as it was.
    """
    rounded = total + x
    kept = rounded - total
    return rounded, lost + ((total - (rounded - kept)) + (x - kept))


@njit_cached
def _relax(
    states: States,
    loads: Loads,
    load: FloatArray,
    ideal: int,
    below: int,
    best: FloatArray,
    came_from: IntArray,
    came_by: IntArray,
) -> None:
    for k in range(len(load)):
        if load[k] == np.inf:
            continue
        for s in range(len(states.digits)):
            if states.digits[s, loads.pool[k]] < loads.copies[k]:
                continue
            # Columns of smaller ideals are complete: ideals are numbered by size.
            value = max(best[s - loads.taken[k], below], load[k])
            if value < best[s, ideal]:
                best[s, ideal] = value
                came_from[s, ideal] = below
                came_by[s, ideal] = k
