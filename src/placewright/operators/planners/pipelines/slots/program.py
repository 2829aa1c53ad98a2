"""Throughput without contiguity as a mixed-integer program, by SCIP.

x[v, d]: node v is on device d. A hyperedge costs device d where some of its members are there and
some are not: cut[e, d] >= x[u, d] - x[v, d] for its members u, v, in both directions. Loads are
in percent of the start's value, so that the solver's tolerances are relative. Devices of a kind are
told apart by pivots: the i-th pivot node may use the first i of them only; the heaviest nodes of
the start's devices are pivots, since they tend to be on different devices anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.operators.planners.pipelines.solver import run_scip
from placewright.solvers.cp_sat import Answer

UNITS = 100.0
"""What the start's value is called: SCIP cuts and branches by absolute numbers."""
TOLERANCE = 1e-6
"""Of SCIP, on loads in these units; the bound is lowered by ten times as much."""
MOST_CUTS = 400_000
"""Rows of cut variables; larger models are left to others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """The program and x[v][s], ``None`` where a node may not be; loads in percent of the start."""

    model: Any
    kinds: list[int]
    x: list[list[Any]]
    largest: list[Any]


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
) -> tuple[IntArray | None, float, bool]:
    """Slots of the nodes, shape (N,), or ``None``; a lower bound in seconds; was it interrupted.

    Parameters
    ----------
    start, value_s
        A plan that fits, slots of the nodes, and what it is worth.
    among
        Only nodes on these slots move, and only among them; then the bound says nothing
        about the whole. By default everything moves.
    """
    if value_s <= 0.0:
        return None, 0.0, False
    kinds = slot_kinds(c)
    pivots: list[list[int]] = [[] for _ in c.pool]
    if start is not None and not among:
        start, pivots = _sorted_out(c, kinds, start)
    m, hint = _build(c, kinds, pivots, value_s, start, among)
    answer: Answer = run_scip(m.model, hint, seed=seed, deadline_s=deadline_s, tolerance=TOLERANCE)
    bound = max(0.0, answer.bound - 10 * TOLERANCE) * value_s / UNITS
    if answer.values is None:
        return None, bound, answer.interrupted
    chosen = [
        max((answer.values(x), -s) for s, x in enumerate(row) if x is not None) for row in m.x
    ]
    return np.array([-s for _, s in chosen]), bound, answer.interrupted


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
) -> tuple[_Model, dict[Any, float]]:
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    parts = 2 if c.diffmaxima else 1
    largest = [model.add_variable(lb=0.0, ub=UNITS * (1 + 1e-6)) for _ in range(parts)]
    m = _Model(model, kinds, [[None] * len(kinds) for _ in range(c.nodes)], largest)
    for k in range(len(c.pool)):
        slots = [s for s, kind in enumerate(kinds) if kind == k]
        for v in range(c.nodes):
            last = pivots[k].index(v) + 1 if v in pivots[k] else len(slots)
            fits = c.work_s[v, k] <= value_s * (1 + 1e-9)
            for s in slots[:last] if fits else ():
                if not among or start is None or _free(start[v], s, among):
                    m.x[v][s] = model.add_binary_variable()
    for row in m.x:
        model.add_linear_constraint(mathopt.fast_sum(x for x in row if x is not None) == 1)
    for s in range(len(kinds)):
        _loads(c, m, s, UNITS / value_s)
        _memory(c, m, s)
    hint = {} if start is None else _hint(m, start)
    if c.replicated:
        opened = _open(c, m)
        used = set() if start is None else set(start.tolist())
        hint |= {x: float(s in used) for s, x in enumerate(opened) if used}
    model.minimize(mathopt.fast_sum(largest))
    return m, hint


def _free(at: int, s: int, among: Sequence[int]) -> bool:
    """Whether a node may go from one slot to another."""
    return bool(s == at or (s in among and at in among))


def _hint(m: _Model, start: IntArray) -> dict[Any, float]:
    return {
        x: float(start[v] == s)
        for v, row in enumerate(m.x)
        for s, x in enumerate(row)
        if x is not None
    }


def _open(c: Contraction, m: _Model) -> list[Any]:
    """Whether each slot takes devices, no more than there are."""
    from ortools.math_opt.python import mathopt

    opened = [m.model.add_binary_variable() for _ in m.kinds]
    for s, x in enumerate(opened):
        for row in m.x:
            if row[s] is not None:
                m.model.add_linear_constraint(row[s] <= x)
    for p, count in enumerate(c.counts):
        taken = [float(c.copies[k]) * opened[s] for s, k in enumerate(m.kinds) if c.pool[k] == p]
        m.model.add_linear_constraint(mathopt.fast_sum(taken) <= float(count))
    return opened


def _loads(c: Contraction, m: _Model, s: int, scale: float) -> None:
    """The load of slot s, or that of each pass, is within its largest."""
    from ortools.math_opt.python import mathopt

    on, k = [row[s] for row in m.x], m.kinds[s]
    late = c.backward_s[:, k], c.backward_bytes
    work, moved = c.work_s[:, k], c.moved_bytes
    passes = ((work - late[0], moved - late[1]), late) if c.diffmaxima else ((work, moved),)
    cuts = _priced_cuts(c, m, s, scale)
    for largest, (part, size) in zip(m.largest, passes, strict=True):
        terms = [float(part[v] * scale) * x for v, x in enumerate(on) if x is not None]
        terms += [float(size[e]) * price for e, price in cuts.items() if size[e] > 0]
        m.model.add_linear_constraint(mathopt.fast_sum(terms) <= largest)


def _priced_cuts(c: Contraction, m: _Model, s: int, scale: float) -> dict[int, Any]:
    """What a byte of each hyperedge costs slot s, in percent of the start."""
    k = m.kinds[s]
    far, g = float(c.host_rate[k]) * scale, int(c.cluster[k])
    near = far if g < 0 else float(c.cluster_rate[k]) * scale
    priced: dict[int, Any] = {}
    for e, members in enumerate(c.members):
        on = [m.x[v][s] for v in members]
        terms = [near * _cut(m.model, on)] if near > 0 else []
        if far > near:
            terms.append((far - near) * _far(c, m, members, s, g))
        if terms:
            priced[e] = sum(terms[1:], terms[0])
    return priced


def _cut(model: Any, on: Sequence[Any]) -> Any:
    """A variable that is one where some of `on` are one and some are not."""
    cut = model.add_variable(lb=0.0, ub=1.0)
    for a in on:
        for b in on:
            if a is not b and a is not None:
                model.add_linear_constraint(cut >= (a if b is None else a - b))
    return cut


def _far(c: Contraction, m: _Model, members: Sequence[int], s: int, g: int) -> Any:
    """A variable that is one where some member is on slot s and some is outside cluster g."""
    from ortools.math_opt.python import mathopt

    far = m.model.add_variable(lb=0.0, ub=1.0)
    inside = [t for t, k in enumerate(m.kinds) if c.cluster[k] == g]
    for u in members:
        for v in members:
            if u != v and m.x[u][s] is not None:
                there = [m.x[v][t] for t in inside if m.x[v][t] is not None]
                m.model.add_linear_constraint(far >= m.x[u][s] - mathopt.fast_sum(there))
    return far


def _memory(c: Contraction, m: _Model, s: int) -> None:
    from ortools.math_opt.python import mathopt

    limit = float(c.memory_bytes[m.kinds[s]])
    if c.resident_bytes.sum() <= limit:
        return
    share = c.resident_bytes / max(limit, 1.0)
    held = [float(share[v]) * row[s] for v, row in enumerate(m.x) if row[s] is not None]
    m.model.add_linear_constraint(mathopt.fast_sum(held) <= limit / max(limit, 1.0))
