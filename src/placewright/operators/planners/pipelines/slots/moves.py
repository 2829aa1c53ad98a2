"""Annealing of throughput around host memory: nodes move to other devices, or are exchanged.

The energy is the sum over devices of (load / least seen) to a high power, which follows the largest
load and still sees the others. Moves that overfill a memory are not made. Slots are devices here
(`pipelines.slots.program.slot_kinds`), without replicated stages, clusters and passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached, njit_nogil
from placewright.operators.planners.annealing import csr, energy, pick_node
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.operators.planners.pipelines.slots.program import slot_kinds


class LoadInstance(NamedTuple):
    """A contraction as the kernel reads it, a column per slot.

    `touch_offsets`, `touched`: CSR: the hyperedges of each node.
    `member_offsets`, `member`: CSR: the nodes of each hyperedge.
    """

    work: FloatArray
    resident: FloatArray
    memory: FloatArray
    rate: FloatArray
    touch_offsets: IntArray
    touched: IntArray
    member_offsets: IntArray
    member: IntArray
    moved: FloatArray


def anneal_slots(
    c: Contraction,
    slot: IntArray,
    *,
    moves: int,
    heat: float,
    seed: int,
    halt: IntArray | None = None,
) -> IntArray:
    """Slots of the nodes, no worse than `slot`, which fits.

    `halt`: shape (1,); another thread ends the walk by writing a one.
    """
    kinds = slot_kinds(c)
    touch: list[list[int]] = [[] for _ in range(c.nodes)]
    for e, members in enumerate(c.members):
        for v in members:
            touch[v].append(e)
    instance = LoadInstance(
        np.ascontiguousarray(c.work_s[:, kinds]),
        c.resident_bytes,
        c.memory_bytes[kinds],
        c.host_rate[kinds],
        *csr(touch),
        *csr([list(members) for members in c.members]),
        c.moved_bytes,
    )
    stop = np.zeros(1, dtype=np.int64) if halt is None else halt
    return _walk(instance, slot.astype(np.int64), moves, heat, seed, stop)


@njit_nogil
def _walk(
    b: LoadInstance, start: IntArray, moves: int, heat: float, seed: int, halt: IntArray
) -> IntArray:
    """Best placement met, by the largest load."""
    np.random.seed(seed)
    n, m = b.work.shape
    place, best = start.copy(), start.copy()
    load, held = np.zeros(m), np.zeros(m)
    count = np.zeros((len(b.moved), m), dtype=np.int64)
    for v in range(n):
        held[place[v]] += b.resident[v]
        _put(b, v, place[v], 1, load, count)
    least = load.max()
    if least <= 0.0 or m < 2:
        return best
    before = np.zeros(m)
    for step in range(moves):
        if halt[0]:
            break
        temperature = heat * (1.0 - step / moves) + 1e-9
        v = pick_node(place, load)
        to, other = _target(b, v, place, m), -1
        a = place[v]
        if to == a or b.work[v, to] == np.inf:
            continue
        if np.random.random() < 0.3:  # exchange with a node of the target
            other = np.random.randint(n)
            if place[other] != to or b.work[other, a] == np.inf:
                other = -1
        back = 0.0 if other < 0 else b.resident[other]
        change = b.resident[v] - back
        if held[to] + change > b.memory[to] or held[a] - change > b.memory[a]:
            continue
        before[:] = load
        _move(b, v, a, to, load, count)
        if other >= 0:
            _move(b, other, to, a, load, count)
        rise = energy(load, least) - energy(before, least)
        if rise > 0.0 and np.random.random() >= np.exp(-rise / temperature):
            _move(b, v, to, a, load, count)
            if other >= 0:
                _move(b, other, a, to, load, count)
            # Copied back rather than subtracted, so that refused moves leave no rounding behind.
            load[:] = before
            continue
        place[v] = to
        if other >= 0:
            place[other] = a
        held[to] += change
        held[a] -= change
        if load.max() < least * (1.0 - 1e-9):
            least = load.max()
            best[:] = place
            if least <= 0.0:
                break
    return best


@njit_cached
def _target(b: LoadInstance, v: int, place: IntArray, m: int) -> int:
    """The device of a node that v shares a hyperedge with, or any."""
    first, last = b.touch_offsets[v], b.touch_offsets[v + 1]
    if last == first or np.random.random() < 0.4:
        return np.random.randint(m)
    e = b.touched[first + np.random.randint(last - first)]
    lo, hi = b.member_offsets[e], b.member_offsets[e + 1]
    return int(place[b.member[lo + np.random.randint(hi - lo)]])


@njit_cached
def _move(b: LoadInstance, v: int, a: int, to: int, load: FloatArray, count: IntArray) -> None:
    _put(b, v, a, -1, load, count)
    _put(b, v, to, 1, load, count)


@njit_cached
def _put(b: LoadInstance, v: int, d: int, sign: int, load: FloatArray, count: IntArray) -> None:
    """Add node v to device d, or remove it."""
    load[d] += sign * b.work[v, d]
    for x in range(b.touch_offsets[v], b.touch_offsets[v + 1]):
        e = b.touched[x]
        size = b.member_offsets[e + 1] - b.member_offsets[e]
        was = 0 < count[e, d] < size
        count[e, d] += sign
        now = 0 < count[e, d] < size
        # A device pays for a hyperedge while it has some of its members and not all.
        if was != now:
            load[d] += b.moved[e] * b.rate[d] * (1.0 if now else -1.0)
