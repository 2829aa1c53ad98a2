"""Throughput without contiguity as a mixed-integer program, by SCIP.

x[v, d]: node v is on device d. A hyperedge costs device d where some of its members are there and
some are not: cut[e, d] >= x[u, d] - x[v, d] for its members u, v, in both directions. Loads are
in percent of the start's value, so that the solver's tolerances are relative. Devices of a kind are
ordered by pivots to break symmetry: the i-th pivot node may use the first i of them only; the
heaviest nodes of the start's devices are pivots, since they tend to be on different devices anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.solvers.answer import Answer
from placewright.solvers.linear import BackEnd, LinearProgram, Term
from placewright.solvers.scip import run_scip

UNITS = 100.0
"""The start's value in the program: SCIP cuts and branches by absolute numbers."""
TOLERANCE = 1e-6
"""SCIP's tolerance on loads in these units; the bound is lowered by ten times as much."""
MOST_CUTS = 400_000
"""Rows of cut variables; larger models are left to others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """The program and the column x[v][s], ``None`` where a node may not be; loads in `UNITS`."""

    program: LinearProgram
    kinds: list[int]
    x: list[list[int | None]]
    largest: list[int]


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
    solve: BackEnd | None = None,
) -> tuple[IntArray | None, float, bool]:
    """Slots of the nodes, shape (N,), or ``None``; a lower bound in seconds; was it interrupted.

    `start`, `value_s`: a plan that fits, slots of the nodes, and its value.
    `among`: only nodes on these slots move, and only among them; then the bound does not hold for
    the whole. By default everything moves.
    """
    if value_s <= 0.0:
        return None, 0.0, False
    kinds = slot_kinds(c)
    pivots: list[list[int]] = [[] for _ in c.pool]
    if start is not None and not among:
        # Among a few slots nothing is sorted: other slots stay as they are, and are not alike then.
        start, pivots = _sorted_out(c, kinds, start)
    m = _build(c, kinds, pivots, value_s, start, among)
    answer = (solve or run_scip)(m.program, seed=seed, deadline_s=deadline_s, tolerance=TOLERANCE)
    bound = max(0.0, answer.bound - 10 * TOLERANCE) * value_s / UNITS
    return chosen(m.x, answer), bound, answer.interrupted


def chosen(x: Sequence[Sequence[int | None]], answer: Answer) -> IntArray | None:
    """The place of largest value for every node, the first of equals; ``None`` without values."""
    if answer.values is None:
        return None
    best = [
        max((answer.values(column), -at) for at, column in enumerate(row) if column is not None)
        for row in x
    ]
    return np.array([-at for _, at in best])


def _sorted_out(
    c: Contraction, kinds: list[int], start: IntArray
) -> tuple[IntArray, list[list[int]]]:
    """The start with slots of a kind renamed, so that pivot i is on the i-th; the pivots."""
    renamed, pivots = np.array(start), []
    for k in range(len(c.pool)):
        slots = [s for s, kind in enumerate(kinds) if kind == k]
        heaviest = [_heaviest(c, np.flatnonzero(start == s), k) for s in slots]
        used = [(s, v) for s, v in zip(slots, heaviest, strict=True) if v is not None]
        rest = [s for s, v in zip(slots, heaviest, strict=True) if v is None]
        for new, old in zip(slots, [s for s, _ in used] + rest, strict=True):
            renamed[start == old] = new
        pivots.append([v for _, v in used])
    return renamed, pivots


def _heaviest(c: Contraction, nodes: IntArray, k: int) -> int | None:
    return None if not len(nodes) else int(nodes[c.work_s[nodes, k].argmax()])


def _build(
    c: Contraction,
    kinds: list[int],
    pivots: Sequence[Sequence[int]],
    value_s: float,
    start: IntArray | None,
    among: Sequence[int],
) -> _Model:
    program = LinearProgram()
    parts = 2 if c.diffmaxima else 1
    largest = [program.column(0.0, UNITS * (1 + 1e-6), cost=1.0) for _ in range(parts)]
    m = _Model(program, kinds, [[None] * len(kinds) for _ in range(c.nodes)], largest)
    for k in range(len(c.pool)):
        slots = [s for s, kind in enumerate(kinds) if kind == k]
        for v in range(c.nodes):
            last = pivots[k].index(v) + 1 if v in pivots[k] else len(slots)
            fits = c.work_s[v, k] <= value_s * (1 + 1e-9)
            for s in slots[:last] if fits else ():
                if not among or start is None or _free(start[v], s, among):
                    m.x[v][s] = program.binary()
    for row in m.x:
        program.row(*((1.0, x) for x in row), low=1.0, high=1.0)
    for s in range(len(kinds)):
        _loads(c, m, s, UNITS / value_s)
        held = [row[s] for row in m.x]
        limit_memory(program, held, c.resident_bytes, float(c.memory_bytes[kinds[s]]))
    if start is not None:
        for v, row in enumerate(m.x):
            program.start |= {x: float(start[v] == s) for s, x in enumerate(row) if x is not None}
    if c.replicated:
        opened = _open(c, m)
        used = set() if start is None else set(start.tolist())
        program.start |= {x: float(s in used) for s, x in enumerate(opened) if used}
    return m


def _free(at: int, s: int, among: Sequence[int]) -> bool:
    """Whether a node may go from one slot to another."""
    return bool(s == at or (s in among and at in among))


def _open(c: Contraction, m: _Model) -> list[int]:
    """Whether each slot takes devices, no more than there are."""
    opened = [m.program.binary() for _ in m.kinds]
    for s, x in enumerate(opened):
        for row in m.x:
            if row[s] is not None:
                m.program.row((1.0, row[s]), (-1.0, x), high=0.0)
    for p, count in enumerate(c.counts):
        # Slots of several kinds share a pool where stages are replicated: devices are counted once.
        taken = [(float(c.copies[k]), opened[s]) for s, k in enumerate(m.kinds) if c.pool[k] == p]
        m.program.row(*taken, high=float(count))
    return opened


def _loads(c: Contraction, m: _Model, s: int, scale: float) -> None:
    """The load of slot s, or that of each pass, is within its largest."""
    on, k = [row[s] for row in m.x], m.kinds[s]
    backward = c.backward_s[:, k], c.backward_bytes
    both = work, moved = c.work_s[:, k], c.moved_bytes
    forward = (work - backward[0], moved - backward[1]) if c.diffmaxima else both
    passes = (forward, backward) if c.diffmaxima else (both,)
    cuts = _priced_cuts(c, m, s, scale)
    for largest, (part, size) in zip(m.largest, passes, strict=True):
        terms: list[Term] = [(float(part[v] * scale), x) for v, x in enumerate(on)]
        for e, cut in cuts.items():
            if size[e] > 0:
                terms += [(float(size[e]) * price, x) for price, x in cut]
        m.program.row(*terms, (-1.0, largest), high=0.0)


def _priced_cuts(c: Contraction, m: _Model, s: int, scale: float) -> dict[int, list[Term]]:
    """What a byte of each hyperedge costs slot s, in units."""
    k = m.kinds[s]
    far, g = float(c.host_rate[k]) * scale, int(c.cluster[k])
    near = far if g < 0 else float(c.cluster_rate[k]) * scale
    priced: dict[int, list[Term]] = {}
    for e, members in enumerate(c.members):
        terms: list[Term] = []
        if near > 0:
            terms.append((near, _cut(m.program, [m.x[v][s] for v in members])))
        if far > near:
            terms.append((far - near, _far(c, m, members, s, g)))
        if terms:
            priced[e] = terms
    return priced


def _cut(program: LinearProgram, on: Sequence[int | None]) -> int:
    """A column that is one where some of `on` are one and some are not."""
    cut = program.column()
    for a in on:
        for b in on:
            if a != b and a is not None:
                program.row((1.0, cut), (-1.0, a), (1.0, b), low=0.0)
    return cut


def _far(c: Contraction, m: _Model, members: Sequence[int], s: int, g: int) -> int:
    """A column that is one where some member is on slot s and some is outside cluster g."""
    far = m.program.column()
    inside = [t for t, k in enumerate(m.kinds) if c.cluster[k] == g]
    for u in members:
        for v in members:
            if u != v and m.x[u][s] is not None:
                there = [(1.0, m.x[v][t]) for t in inside]
                m.program.row((1.0, far), (-1.0, m.x[u][s]), *there, low=0.0)
    return far


def limit_memory(
    program: LinearProgram, on: Sequence[int | None], resident_bytes: FloatArray, limit: float
) -> None:
    """What lives on a device fits, in shares of its memory."""
    if resident_bytes.sum() <= limit:
        return
    # Shares, not bytes: the solver's tolerance is absolute.
    share = resident_bytes / max(limit, 1.0)
    terms = [(float(share[v]), x) for v, x in enumerate(on)]
    program.row(*terms, high=limit / max(limit, 1.0))
