"""Better placements around host memory: walks of annealing, and three devices at a time.

In annealing, nodes move to other devices or are exchanged.
The energy is the sum over devices of (load / least seen) to a high power, which follows the largest
load and still sees the others. Moves that overfill a memory are not made. Slots are devices here
(`pipelines.slots.slot_kinds`), without replicated stages, clusters and passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached, njit_nogil
from placewright.operators.planners.annealing import csr, energy, pick_node
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.operators.planners.pipelines.slots import best_cuts, plan_of, slot_kinds
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.loads import star_loads

HEATS = (0.01, 0.02, 0.01, 0.005, 0.02, 0.01)
"""First temperatures, in turn; a device at the largest load has energy 1."""
MOVES = 100
"""Moves of each walk, per pair of nodes; at most `MOST_MOVES`."""
MOST_MOVES = 4_000_000
PATIENCE = 2
"""Walks without a better plan after which no more are made, where no solver runs beside them."""


def annealed(
    c: Contraction,
    slot: IntArray,
    value: Callable[[IntArray], float],
    *,
    seed: int,
    deadline_s: float,
    walks: int = len(HEATS),
    patience: int = PATIENCE,
    halt: IntArray | None = None,
) -> tuple[IntArray, bool]:
    """Slots of the best placement that some walks find, and whether Ctrl-C came.

    Each walk begins at the best placement so far or at `slot`.

    `value`: objective of slots of the nodes.
    `halt`: shape (1,); another thread ends the walk by writing a one.
    """
    first, best, least, idle = slot, slot, value(slot), 0
    moves, stop = min(MOVES * c.nodes**2, MOST_MOVES), np.zeros(1, dtype=np.int64)
    stop = stop if halt is None else halt
    try:
        for walk in range(walks):
            if time.perf_counter() >= deadline_s or idle == patience or stop[0]:
                break
            found = anneal_slots(
                c,
                best if walk % 2 else first,
                moves=moves,
                heat=HEATS[walk % len(HEATS)],
                seed=seed + walk,
                halt=stop,
            )
            reached = value(found)
            idle = 0 if reached < least else idle + 1
            if reached < least:
                best, least = found, reached
    except KeyboardInterrupt:
        return best, True
    return best, False


@contextmanager
def beside(
    c: Contraction, slot: IntArray, value: Callable[[IntArray], float], *, seed: int
) -> Iterator[Callable[[], IntArray]]:
    """Walks in another thread until the block ends, or until what is yielded is called.

    That ends the walks and returns the best slots found.
    """
    halt = np.zeros(1, dtype=np.int64)
    # The kernel releases the GIL and looks at `halt`. It is set before the pool's own exit waits
    # for the thread, also where the block raises.
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(
            annealed,
            c,
            slot,
            value,
            seed=seed,
            deadline_s=np.inf,
            walks=2**31,
            patience=2**31,
            halt=halt,
        )

        def best() -> IntArray:
            halt[0] = 1
            return task.result()[0]

        try:
            yield best
        finally:
            halt[0] = 1


_SHARE_S = 5.0
"""Seconds that one trio may take."""


def by_trios(
    problem: OperatorProblem,
    c: Contraction,
    slot: IntArray,
    *,
    seed: int,
    deadline_s: float,
) -> tuple[IntArray, bool]:
    """Slots of the nodes, no worse than `slot`, which fits; whether Ctrl-C came.

    Slots are devices here.

    The most loaded device is in every trio: without it nothing gets better. The first trio that
    helps is taken and the search begins again; it ends where none does, or at the deadline.
    """
    best, better = slot, True
    try:
        while better:
            better = False
            load_s = _loads(problem, c, best)
            worst = int(load_s.argmax())
            others = sorted((d for d in range(problem.m) if d != worst), key=lambda d: load_s[d])
            for pair in combinations(others, min(2, len(others))):
                until = min(deadline_s, time.perf_counter() + _SHARE_S)
                if time.perf_counter() >= deadline_s:
                    break
                value = float(load_s.max())
                among = (worst, *pair)
                found, _, interrupted = best_cuts(
                    c, best, value, seed=seed, deadline_s=until, among=among
                )
                if found is not None and _loads(problem, c, found).max() < value * (1 - 1e-9):
                    best, better = found, True
                if interrupted:
                    return best, True
                if better:
                    break
    except KeyboardInterrupt:
        return best, True
    return best, False


def _loads(problem: OperatorProblem, c: Contraction, slot: IntArray) -> FloatArray:
    """Shape (slots,), the load of every slot."""
    devices = np.concatenate([np.array(devices) for devices in c.pools])
    load_s: FloatArray = star_loads(problem, plan_of(c, slot)).load_s[devices]
    return load_s


@by_reference
class SlotInstance(NamedTuple):
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
    instance = SlotInstance(
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
    b: SlotInstance, start: IntArray, moves: int, heat: float, seed: int, halt: IntArray
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
        v = pick_node(place, int(load.argmax()))
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
def _target(b: SlotInstance, v: int, place: IntArray, m: int) -> int:
    """The device of a node that v shares a hyperedge with, or any."""
    first, last = b.touch_offsets[v], b.touch_offsets[v + 1]
    if last == first or np.random.random() < 0.4:
        return np.random.randint(m)
    e = b.touched[first + np.random.randint(last - first)]
    lo, hi = b.member_offsets[e], b.member_offsets[e + 1]
    return int(place[b.member[lo + np.random.randint(hi - lo)]])


@njit_cached
def _move(b: SlotInstance, v: int, a: int, to: int, load: FloatArray, count: IntArray) -> None:
    _put(b, v, a, -1, load, count)
    _put(b, v, to, 1, load, count)


@njit_cached
def _put(b: SlotInstance, v: int, d: int, sign: int, load: FloatArray, count: IntArray) -> None:
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
