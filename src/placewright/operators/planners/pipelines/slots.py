"""Throughput around host memory, without contiguity: a mixed-integer program, and walks of moves.

x[v, d]: node v is on device d. A hyperedge costs device d where some of its members are there and
some are not: cut[e, d] >= x[u, d] - x[v, d] for its members u, v, in both directions. Loads are
in percent of the start's value, so that the solver's tolerances are relative. Devices of a kind are
ordered by pivots to break symmetry: the i-th pivot node may use the first i of them only; the
heaviest nodes of the start's devices are pivots, since they tend to be on different devices anyway.

In annealing, nodes move to other devices or are exchanged.
The energy is the sum over devices of (load / least seen) to a high power, which follows the largest
load and still sees the others. Moves that overfill a memory are not made. Slots are devices here
(`slot_kinds`), without replicated stages, clusters and passes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached, njit_nogil
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.annealing import csr, energy, pick_node
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.loads import star_loads
from placewright.planning.contract import Progress, silent
from placewright.solvers.programs import LinearProgram, Solution

UNITS = 100.0
"""The start's value in the program: solvers cut and branch by absolute numbers."""
TOLERANCE = 1e-6
"""By how much HiGHS may be wrong on loads in these units; bounds are lowered by ten times this."""
WHOLE = 1e-9
"""HiGHS's tolerance on whole columns. With its own, 1e-6, it calls plans better that are not."""
MOST_CUTS = 400_000
"""Rows of cut variables; larger models are left to others."""


def slot_kinds(c: Contraction) -> list[int]:
    """The kind of every slot."""
    return [k for k, most in enumerate(c.most_stages) for _ in range(most)]


def slots_of(c: Contraction, plan: OperatorPlan) -> IntArray:
    """Shape (N,), the slot of every node under a plan."""
    stage, kinds = c.stages(plan)
    free = {k: iter(np.flatnonzero(np.array(slot_kinds(c)) == k).tolist()) for k in set(kinds)}
    return np.array([next(free[k]) for k in kinds], dtype=np.int64)[stage]


def plan_of(c: Contraction, slot: IntArray) -> OperatorPlan:
    """The plan with nodes on these slots; without copies, slots are devices, pool by pool."""
    kinds = slot_kinds(c)
    if not c.replicated:
        return c.plan(slot, kinds)
    used, stage = np.unique(slot, return_inverse=True)
    return c.plan(stage, [kinds[s] for s in used.tolist()])


def too_large(c: Contraction) -> bool:
    """Whether the program would have too many rows to be of use."""
    pairs = sum(len(members) ** 2 for members in c.members)
    return pairs * len(slot_kinds(c)) > MOST_CUTS


def best_cuts(
    c: Contraction,
    start: IntArray | None,
    value_s: float,
    *,
    seed: int,
    deadline_s: float,
    among: Sequence[int] = (),
    progress: Progress = silent,
) -> tuple[IntArray | None, float, bool]:
    """Slots of the nodes, shape (N,), or ``None``; a lower bound in seconds; was it interrupted.

    `start`, `value_s`: a plan that fits, slots of the nodes, and its value.
    `among`: only nodes on these slots move, and only among them; then the bound does not hold for
    the whole. By default everything moves.
    """
    if value_s <= 0.0:
        return None, 0.0, False
    kinds = np.array(slot_kinds(c), dtype=np.int64)
    allowed = c.work_s[:, kinds] <= value_s * (1 + 1e-9)
    if start is not None and among:
        slots = np.arange(len(kinds))
        moves = np.isin(start, among)[:, None] & np.isin(slots, among)
        allowed &= moves | (start[:, None] == slots)
    elif start is not None:
        # Among a few slots nothing is sorted: other slots stay as they are, and are not alike then.
        start, later = sorted_out(c.work_s, kinds, start)
        allowed &= ~later
    program = _build(c, kinds, allowed, value_s, start, seed)
    found = program.solve(deadline_s, progress=in_seconds(progress, value_s))
    bound = max(0.0, found.bound - 10 * TOLERANCE) * value_s / UNITS
    return chosen(found), bound, found.interrupted


def in_seconds(progress: Progress, value_s: float) -> Callable[[float, float], None] | None:
    """Progress of branching, whose values are in `UNITS` of a start of so many seconds."""
    begun_s, unit_s = time.perf_counter(), value_s / UNITS

    def report(value: float, bound: float) -> None:
        progress(
            what="branching",
            value=value * unit_s,
            bound=max(0.0, bound) * unit_s,
            elapsed_s=time.perf_counter() - begun_s,
        )

    return None if progress is silent else report


def chosen(found: Solution) -> IntArray | None:
    """The place of largest value for every node, the first of equals; ``None`` without values."""
    if found.values is None:
        return None
    place: IntArray = found["x"].argmax(axis=1)
    return place


def sorted_out(work_s: FloatArray, kinds: IntArray, start: IntArray) -> tuple[IntArray, BoolArray]:
    """The start with places of a kind renamed, so that pivot i is on the i-th.

    And the places after its own where a pivot may not be, shape (N, places).

    `work_s`: of every node on places of each kind, shape (N, kinds).
    """
    renamed, later = np.array(start), np.zeros((len(work_s), len(kinds)), dtype=np.bool_)
    for kind in np.unique(kinds).tolist():
        places = np.flatnonzero(kinds == kind)
        used = [s for s in places.tolist() if (start == s).any()]
        rest = [s for s in places.tolist() if s not in used]
        for i, old in enumerate(used + rest):
            nodes = np.flatnonzero(start == old)
            renamed[nodes] = places[i]
            if len(nodes):
                later[nodes[work_s[nodes, kind].argmax()], places[i + 1 :]] = True
    return renamed, later


def _build(
    c: Contraction,
    kinds: IntArray,
    allowed: BoolArray,
    value_s: float,
    start: IntArray | None,
    seed: int,
) -> LinearProgram:
    """The program; block ``x`` has a column for every node and slot."""
    program, parts = LinearProgram(seed=seed, tolerance=WHOLE), 2 if c.diffmaxima else 1
    largest = program.columns(parts, high=UNITS * (1 + 1e-6), cost=1.0)
    x = program.columns(allowed.shape, high=1.0, whole=True, where=allowed, name="x")
    program.enter(program.rows(c.nodes, 1.0, 1.0)[:, None], x, 1.0)
    load = program.rows((parts, len(kinds)), high=0.0)
    program.enter(load, largest[:, None], -1.0)
    _add_work(c, program, load, x, kinds, UNITS / value_s)
    _add_cuts(c, program, load, x, kinds, UNITS / value_s)
    limit_memory(program, x, c.resident_bytes, c.memory_bytes[kinds])
    opened = _open(c, program, x, kinds) if c.replicated else None
    if start is not None:
        program.start(x, start[:, None] == np.arange(len(kinds)))
        if opened is not None:
            program.start(opened, np.isin(np.arange(len(kinds)), start))
    return program


def _add_work(
    c: Contraction,
    program: LinearProgram,
    load: IntArray,
    x: IntArray,
    kinds: IntArray,
    scale: float,
) -> None:
    """What the nodes of a slot compute, in all or in each pass."""
    work, backward = (
        np.where(x >= 0, all_s[:, kinds], 0.0) * scale for all_s in (c.work_s, c.backward_s)
    )
    if not c.diffmaxima:
        backward = np.zeros_like(work)
    program.enter(load[0], x, work - backward)
    program.enter(load[-1], x, backward)


def _add_cuts(
    c: Contraction,
    program: LinearProgram,
    load: IntArray,
    x: IntArray,
    kinds: IntArray,
    scale: float,
) -> None:
    """What each hyperedge costs a slot that it leaves: of its cluster, or only of the slot."""
    host, cluster = c.host_rate[kinds] * scale, c.cluster[kinds]
    near = np.where(cluster < 0, host, c.cluster_rate[kinds] * scale)
    shape = len(c.members), len(kinds)
    pairs = [(e, u, v) for e, some in enumerate(c.members) for u, v in permutations(some, 2)]
    e, u, v = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
    backward = c.backward_bytes if c.diffmaxima else np.zeros(len(c.members))
    # One where some member is on the slot and some is not; one where some is on the slot and some
    # outside of the slot's cluster.
    # They are whole wherever nodes are, and said to be.
    # What alone costs more than the start is in no better plan.
    prices = [c.moved_bytes[:, None] * price for price in (near, host - near)]
    cut, far = (
        program.columns(shape, high=price <= UNITS * (1 + 1e-9), where=price > 0, whole=True)
        for price in prices
    )
    share = backward[:, None] / np.maximum(c.moved_bytes[:, None], 1e-300)
    for column, price in zip((cut, far), prices, strict=True):
        price = np.where(price <= UNITS * (1 + 1e-9), price, 0.0)
        rows = program.rows((len(e), len(kinds)), low=0.0, where=(x[u] >= 0) & (column[e] >= 0))
        program.enter(rows, column[e], 1.0)
        program.enter(rows, x[u], -1.0)
        if column is cut:
            program.enter(rows, x[v], 1.0)
        else:
            inside = cluster[:, None] == cluster
            program.enter(rows[:, :, None], x[v][:, None, :], inside)
        program.enter(load[0], column, price * (1.0 - share))
        program.enter(load[-1], column, price * share)


def _open(c: Contraction, program: LinearProgram, x: IntArray, kinds: IntArray) -> IntArray:
    """Whether each slot takes devices, no more than there are."""
    opened = program.columns(len(kinds), high=1.0, whole=True)
    rows = program.rows(x.shape, high=0.0, where=x >= 0)
    program.enter(rows, x, 1.0)
    program.enter(rows, opened, -1.0)
    # Slots of several kinds share a pool where stages are replicated: devices are counted once.
    taken = program.rows(len(c.counts), high=c.counts)
    program.enter(taken[c.pool[kinds]], opened, c.copies[kinds])
    return opened


def limit_memory(
    program: LinearProgram, x: IntArray, resident_bytes: FloatArray, limits: FloatArray
) -> None:
    """What lives on each device fits, in shares of its memory."""
    # Shares, not bytes: the solver's tolerance is absolute.
    size = np.maximum(np.where(np.isfinite(limits), limits, 1.0), 1.0)
    short = resident_bytes.sum() > limits
    rows = program.rows(len(limits), high=limits / size, where=short)
    program.enter(rows, x, resident_bytes[:, None] / size)


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


def give_way() -> None:
    """Let this thread have what threads of the usual priority leave of the cores: the solver's."""
    if sys.platform == "linux":  # elsewhere it would be the whole process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


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
    with ThreadPoolExecutor(1, initializer=give_way) as pool:
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
