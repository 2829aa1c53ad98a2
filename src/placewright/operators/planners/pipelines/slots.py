"""Throughput around host memory, without contiguity, as a mixed-integer program.

x[v, d]: node v is on device d. A hyperedge costs device d where some of its members are there and
some are not: cut[e, d] >= x[u, d] - x[v, d] for its members u, v, in both directions. Loads are
in percent of the start's value, so that the solver's tolerances are relative. Devices of a kind are
ordered by pivots to break symmetry: the i-th pivot node may use the first i of them only; the
heaviest nodes of the start's devices are pivots, since they tend to be on different devices anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pipelines.contraction import Contraction
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
    # What alone costs more than the start is in no better plan.
    prices = [c.moved_bytes[:, None] * price for price in (near, host - near)]
    cut, far = (
        program.columns(shape, high=price <= UNITS * (1 + 1e-9), where=price > 0)
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
