"""Contiguous throughput as a CP-SAT model of stage numbers.

``le[v][s]``: node v is on one of the stages 0..s; a forward edge (u, v) says ``le[v][s] =>
le[u][s]``. Every stage is a device of one kind; stages are in the order of the chain, so that
nothing is left of the symmetry between devices of a kind. A hyperedge is cut by a stage that holds
some of its members and not all.

Loads are in whole numbers, rounded down, so that the least T is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.arrays import IntArray
from placewright.operators.planners._contraction import Contraction
from placewright.operators.planners._ideals import Chain
from placewright.operators.planners._solver import run_cp_sat

RESOLUTION = 2.0**25
"""Whole numbers up to the incumbent's load. Not more: the presolve of CP-SAT (9.15) has called
feasible models infeasible where coefficients were 2**30 and larger."""


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """The CP-SAT model and its variables: ``below[v][s]``, ``on[v][s]``, ``kind[s][k]``."""

    model: Any
    below: list[list[Any]]
    on: list[list[Any]]
    kind: list[list[Any]]
    cut: list[list[Any]]


def best_stages(
    c: Contraction, start: Chain | None, *, seed: int, deadline_s: float, workers: int
) -> tuple[IntArray | None, float]:
    """Devices of the nodes, shape (N,), or ``None``, and a lower bound in seconds."""
    top = c.most_s if start is None else start.value_s
    scale = RESOLUTION / top if top > 0 else 1.0
    m = _build(c, top, scale)
    if start is not None:
        _hint(c, m, start)
    answer = run_cp_sat(m.model, seed=seed, deadline_s=deadline_s, workers=workers)
    if answer.infeasible and start is not None:  # which the start disproves
        answer = run_cp_sat(
            m.model, seed=seed, deadline_s=deadline_s, workers=workers, presolve=False
        )
    if answer.values is None:
        return None, answer.bound / scale
    stage = [next(s for s, x in enumerate(row) if answer.values(x)) for row in m.on]
    kinds = [next(k for k, x in enumerate(row) if answer.values(x)) for row in m.kind]
    return _devices(c, np.array(stage), kinds), answer.bound / scale


def _build(c: Contraction, top: float, scale: float) -> _Model:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    stages, kinds = sum(c.counts), len(c.counts)
    most = int(top * scale) + 1
    largest = model.new_int_var(0, most, "T")
    m = _Model(
        model,
        [[model.new_bool_var("") for _ in range(stages - 1)] for _ in range(c.nodes)],
        [[model.new_bool_var("") for _ in range(stages)] for _ in range(c.nodes)],
        [[model.new_bool_var("") for _ in range(kinds)] for _ in range(stages)],
        [[model.new_bool_var("") for _ in range(stages)] for _ in c.members],
    )
    _order(c, m)
    _kinds(c, m)
    _cuts(c, m)
    for s in range(stages):
        for k in range(kinds):
            _load(c, m, s, k, scale, largest)
            _memory(c, m, s, k)
    model.minimize(largest)
    return m


def _order(c: Contraction, m: _Model) -> None:
    stages = len(m.kind)
    for v in range(c.nodes):
        edge = [0, *m.below[v], 1]
        for s in range(stages):
            m.model.add(m.on[v][s] == edge[s + 1] - edge[s])
        for s in range(stages - 2):
            m.model.add_implication(m.below[v][s], m.below[v][s + 1])
    for u, v in c.edges.tolist():
        for s in range(stages - 1):
            m.model.add_implication(m.below[v][s], m.below[u][s])


def _kinds(c: Contraction, m: _Model) -> None:
    for row in m.kind:
        m.model.add_exactly_one(row)
    for k, count in enumerate(c.counts):
        m.model.add(sum(row[k] for row in m.kind) == count)


def _cuts(c: Contraction, m: _Model) -> None:
    for members, cut in zip(c.members, m.cut, strict=True):
        one = members[0]
        for other in members[1:]:
            for s, x in enumerate(cut):
                m.model.add_bool_or([~m.on[one][s], m.on[other][s], x])
                m.model.add_bool_or([~m.on[other][s], m.on[one][s], x])


def _load(c: Contraction, m: _Model, s: int, k: int, scale: float, largest: Any) -> None:
    """Work and cut hyperedges of stage s are within T where it is of kind k."""
    from ortools.sat.python import cp_model

    terms: list[tuple[Any, int]] = []
    top = RESOLUTION / scale * (1 + 1e-9)
    for v in range(c.nodes):
        if c.work_s[v, k] > top:
            m.model.add_implication(m.on[v][s], ~m.kind[s][k])
        else:
            terms.append((m.on[v][s], int(c.work_s[v, k] * scale)))
    moved = (c.moved_bytes * c.host_rate[k] * scale).astype(np.int64).tolist()
    terms += [(cut[s], cost) for cut, cost in zip(m.cut, moved, strict=True)]
    some = [(x, cost) for x, cost in terms if cost > 0]
    load = cp_model.LinearExpr.weighted_sum([x for x, _ in some], [cost for _, cost in some])
    m.model.add(load <= largest).only_enforce_if(m.kind[s][k])


def _memory(c: Contraction, m: _Model, s: int, k: int) -> None:
    if c.resident_bytes.sum() <= c.memory_bytes[k]:
        return
    need = [int(b) for b in c.resident_bytes]
    held = sum(b * m.on[v][s] for v, b in enumerate(need) if b)
    m.model.add(held <= int(c.memory_bytes[k])).only_enforce_if(m.kind[s][k])


def _hint(c: Contraction, m: _Model, start: Chain) -> None:
    kinds = list(start.kinds)
    for k, count in enumerate(c.counts):
        kinds += [k] * (count - kinds.count(k))
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


def _devices(c: Contraction, stage: IntArray, kinds: list[int]) -> IntArray:
    """Devices of a kind in the order of their stages."""
    free = [iter(devices) for devices in c.kind_devices]
    return np.array([next(free[k]) for k in kinds])[stage]
