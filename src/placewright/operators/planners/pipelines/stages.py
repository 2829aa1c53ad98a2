"""Contiguous throughput as a CP-SAT model of stage numbers.

``le[v][s]``: node v is on one of the stages 0..s; a forward edge (u, v) says ``le[v][s] =>
le[u][s]``. Every stage is of one kind, or closed; stages are in the order of the chain, so that
nothing is left of the symmetry between devices that are alike. A hyperedge is cut by a stage that
holds some of its members and not all. With clusters, ``within[v][g]`` says that the stage of node
v is in cluster g; a stage there pays the host's rate instead of the cluster's for each hyperedge
that it touches and of which some member is outside g.

Loads are in whole numbers, rounded down, so that the least T is a lower bound. A load loses less
than one unit for each of its terms: that is what a proof of the least T leaves open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.operators.planners.pipelines.ideals import IdealChain
from placewright.solvers.programs import run_cp_sat

RESOLUTION = 2.0**25
"""Whole numbers up to the incumbent's load. Not more: the presolve of CP-SAT (9.15) has called
feasible models infeasible where coefficients were 2**30 and larger."""


@dataclass(frozen=True, slots=True, eq=False)
class _StageModel:
    """The CP-SAT model and its variables: ``below[v][s]``, ``on[v][s]``, ``kind[s][k]``.

    ``far[g][e][s]``: if stage s is in cluster g, it touches hyperedge e, which leaves g.
    """

    model: Any
    below: list[list[Any]]
    on: list[list[Any]]
    kind: list[list[Any]]
    cut: list[list[Any]]
    far: dict[int, list[list[Any]]]


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What CP-SAT found.

    Attributes
    ----------
    chain
        The best chain, its value is left to others; ``None`` where there is none.
    bound_s
        No chain has a smaller largest load.
    resolution_s
        Where the search came to its end: the most that rounding can have taken from the load of
        `chain`, so that its value is at most ``bound_s + resolution_s``; else zero.
    interrupted
        Whether Ctrl-C came.
    """

    chain: IdealChain | None
    bound_s: float
    resolution_s: float = 0.0
    interrupted: bool = False


def best_stages(
    c: Contraction, start: IdealChain | None, *, seed: int, deadline_s: float, workers: int
) -> Stages:
    """The best chain of stages, and what is proved about it.

    `start`: a chain whose value, which is that of `c`, no better one exceeds.
    """
    top = c.most_s if start is None else start.value_s
    scale = RESOLUTION / top if top > 0 else 1.0
    m = _build(c, top, scale)
    if start is not None:
        _hint(c, m, start)
    answer = run_cp_sat(m.model, seed=seed, deadline_s=deadline_s, workers=workers)
    # Presolve has been wrong before on large coefficients (see `RESOLUTION`).
    if answer.infeasible and start is not None:  # which the start disproves
        answer = run_cp_sat(
            m.model, seed=seed, deadline_s=deadline_s, workers=workers, presolve=False
        )
    if answer.values is None:
        return Stages(None, answer.bound / scale, interrupted=answer.interrupted)
    stage = [next(s for s, x in enumerate(row) if answer.values(x)) for row in m.on]
    kinds = [next((k for k, x in enumerate(row) if answer.values(x)), -1) for row in m.kind]
    lost_s = _terms(c) / scale if answer.proved else 0.0
    return Stages(_chain(stage, kinds), answer.bound / scale, lost_s, answer.interrupted)


def _terms(c: Contraction) -> int:
    """The most terms that the objective can have: each loses less than one unit."""
    rates = 2 if (c.cluster >= 0).any() else 1
    return (c.nodes + rates * len(c.members)) * (2 if c.diffmaxima else 1)


def _chain(stage: list[int], kinds: list[int]) -> IdealChain:
    """Without the stages that nothing is on."""
    used = sorted(set(stage))
    return IdealChain(
        math.inf,
        np.array([used.index(s) for s in stage], dtype=np.int64),
        tuple(kinds[s] for s in used),
    )


def _build(c: Contraction, top: float, scale: float) -> _StageModel:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    stages, kinds = sum(c.counts), len(c.pool)
    most = int(top * scale) + 1
    parts = [model.new_int_var(0, most, "") for _ in range(2 if c.diffmaxima else 1)]
    m = _StageModel(
        model,
        [[model.new_bool_var("") for _ in range(stages - 1)] for _ in range(c.nodes)],
        [[model.new_bool_var("") for _ in range(stages)] for _ in range(c.nodes)],
        [[model.new_bool_var("") for _ in range(kinds)] for _ in range(stages)],
        [[model.new_bool_var("") for _ in range(stages)] for _ in c.members],
        {},
    )
    _order(c, m)
    _kinds(c, m)
    _cuts(c, m)
    for g in sorted({*c.cluster.tolist()} - {-1}):
        _leave(c, m, g)
    backward_s, sent = c.backward_s, c.backward_bytes
    forward = c.work_s - np.where(np.isfinite(c.work_s), backward_s, 0.0), c.moved_bytes - sent
    passes = (forward, (backward_s, sent)) if c.diffmaxima else ((c.work_s, c.moved_bytes),)
    for s in range(stages):
        for k in range(kinds):
            for part, (work, moved) in zip(parts, passes, strict=True):
                _load(c, m, (s, k), (work[:, k] * scale, moved * scale), part)
            _memory(c, m, s, k)
    model.minimize(sum(parts))
    return m


def _order(c: Contraction, m: _StageModel) -> None:
    stages = len(m.kind)
    for v in range(c.nodes):
        # `below[v]` rises from 0 to 1 once: the step is the stage that v is on.
        edge = [0, *m.below[v], 1]
        for s in range(stages):
            m.model.add(m.on[v][s] == edge[s + 1] - edge[s])
        for s in range(stages - 2):
            m.model.add_implication(m.below[v][s], m.below[v][s + 1])
    for u, v in c.edges.tolist():
        for s in range(stages - 1):
            m.model.add_implication(m.below[v][s], m.below[u][s])


def _kinds(c: Contraction, m: _StageModel) -> None:
    """Stages of a kind, or closed: then nothing is on them, and so on none after them."""
    for s, row in enumerate(m.kind):
        m.model.add_at_most_one(row)
        for v in range(c.nodes):
            m.model.add_bool_or([*row, ~m.on[v][s]])
        if s:
            m.model.add(sum(row) <= sum(m.kind[s - 1]))
    for p, count in enumerate(c.counts):
        taken = [
            int(c.copies[k]) * row[k]
            for row in m.kind
            for k in np.flatnonzero(c.pool == p).tolist()
        ]
        m.model.add(sum(taken) <= count)


def _cuts(c: Contraction, m: _StageModel) -> None:
    for members, cut in zip(c.members, m.cut, strict=True):
        one = members[0]
        for other in members[1:]:
            for s, x in enumerate(cut):
                m.model.add_bool_or([~m.on[one][s], m.on[other][s], x])
                m.model.add_bool_or([~m.on[other][s], m.on[one][s], x])


def _leave(c: Contraction, m: _StageModel, g: int) -> None:
    """Which hyperedges that a stage in cluster g touches have members outside of g."""
    inside = [sum(row[k] for k in np.flatnonzero(c.cluster == g).tolist()) for row in m.kind]
    within = [m.model.new_bool_var("") for _ in range(c.nodes)]
    for v, x in enumerate(within):
        for s, there in enumerate(inside):
            m.model.add(x == there).only_enforce_if(m.on[v][s])
    m.far[g] = [[m.model.new_bool_var("") for _ in m.kind] for _ in c.members]
    for members, row in zip(c.members, m.far[g], strict=True):
        for s, x in enumerate(row):
            for v in members:
                for u in members:
                    if u != v:
                        m.model.add_bool_or([~m.on[v][s], within[u], x])


def _load(
    c: Contraction,
    m: _StageModel,
    at: tuple[int, int],
    costs: tuple[FloatArray, FloatArray],
    largest: Any,
) -> None:
    """Work and cut hyperedges of stage s are within T where it is of kind k; costs are scaled."""
    from ortools.sat.python import cp_model

    (s, k), (work, moved) = at, costs
    terms: list[tuple[Any, int]] = []
    top = RESOLUTION * (1 + 1e-9)
    for v in range(c.nodes):
        # Too much alone, so that no coefficient is above `RESOLUTION`.
        if work[v] > top:
            m.model.add_implication(m.on[v][s], ~m.kind[s][k])
        else:
            terms.append((m.on[v][s], int(work[v])))
    g, far_rate = int(c.cluster[k]), float(c.host_rate[k])
    near_rate = far_rate if g < 0 else min(far_rate, float(c.cluster_rate[k]))
    near = _units(moved * near_rate)
    terms += [(cut[s], cost) for cut, cost in zip(m.cut, near, strict=True)]
    if g >= 0:
        # What leaves the cluster pays the near rate as a cut and the rest here.
        more = _units(moved * (far_rate - near_rate))
        terms += [(far[s], cost) for far, cost in zip(m.far[g], more, strict=True)]
    some = [(x, cost) for x, cost in terms if cost > 0]
    load = cp_model.LinearExpr.weighted_sum([x for x, _ in some], [cost for _, cost in some])
    m.model.add(load <= largest).only_enforce_if(m.kind[s][k])


def _units(scaled: FloatArray) -> list[int]:
    """Rounded down; just too many for any stage where it is more than that."""
    units: list[int] = np.minimum(scaled, 2 * RESOLUTION).astype(np.int64).tolist()
    return units


def _memory(c: Contraction, m: _StageModel, s: int, k: int) -> None:
    if c.resident_bytes.sum() <= c.memory_bytes[k]:
        return
    need = [int(b) for b in c.resident_bytes]
    held = sum(b * m.on[v][s] for v, b in enumerate(need) if b)
    m.model.add(held <= int(c.memory_bytes[k])).only_enforce_if(m.kind[s][k])


def _hint(c: Contraction, m: _StageModel, start: IdealChain) -> None:
    kinds = [*start.kinds, *([-1] * (len(m.kind) - len(start.kinds)))]
    for v, at in enumerate(start.stage.tolist()):
        for s, x in enumerate(m.on[v]):
            m.model.add_hint(x, at == s)
        for s, x in enumerate(m.below[v]):
            m.model.add_hint(x, at <= s)
    for s, row in enumerate(m.kind):
        for k, x in enumerate(row):
            m.model.add_hint(x, kinds[s] == k)
    for members, row in zip(c.members, m.cut, strict=True):
        for s, x in enumerate(row):
            inside = sum(int(start.stage[v]) == s for v in members)
            m.model.add_hint(x, 0 < inside < len(members))
