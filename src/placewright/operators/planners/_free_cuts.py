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

from placewright.arrays import IntArray
from placewright.operators.planners._contraction import Contraction
from placewright.operators.planners._solver import Answer, run_scip

UNITS = 100.0
"""What the start's value is called: SCIP cuts and branches by absolute numbers."""
TOLERANCE = 1e-6
"""Of SCIP, on loads in these units; the bound is lowered by ten times as much."""
MOST_CUTS = 400_000
"""Rows of cut variables; larger models are left to others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """The program and x[v][d], ``None`` where a node may not be; loads in percent of the start."""

    model: Any
    x: list[list[Any]]
    largest: Any


def too_large(c: Contraction) -> bool:
    """Whether the program would have too many rows to be of use."""
    pairs = sum(len(members) ** 2 for members in c.members)
    return pairs * sum(c.counts) > MOST_CUTS


def best_cuts(
    c: Contraction,
    start: IntArray,
    value_s: float,
    *,
    seed: int,
    deadline_s: float,
    among: Sequence[int] = (),
) -> tuple[IntArray | None, float]:
    """Devices of the nodes, shape (N,), or ``None``, and a lower bound in seconds.

    Parameters
    ----------
    start, value_s
        A plan that fits, devices of the nodes, and its largest load.
    among
        Only nodes on these devices move, and only among them; then the bound says nothing
        about the whole. By default everything moves.
    """
    if value_s <= 0.0:
        return None, 0.0
    pivots: list[list[int]] = [[] for _ in c.counts]
    if not among:
        start, pivots = _sorted_out(c, start)
    m = _build(c, pivots, value_s, start, among)
    hint = {
        x: float(start[v] == d)
        for v, row in enumerate(m.x)
        for d, x in enumerate(row)
        if x is not None
    }
    answer: Answer = run_scip(m.model, hint, seed=seed, deadline_s=deadline_s, tolerance=TOLERANCE)
    bound = max(0.0, answer.bound - 10 * TOLERANCE) * value_s / UNITS
    if answer.values is None:
        return None, bound
    chosen = [
        max((answer.values(x), -d) for d, x in enumerate(row) if x is not None) for row in m.x
    ]
    return np.array([-d for _, d in chosen]), bound


def _sorted_out(c: Contraction, start: IntArray) -> tuple[IntArray, list[list[int]]]:
    """The start with devices of a kind renamed, so that pivot i is on the i-th; the pivots."""
    renamed, pivots = np.array(start), []
    for k, devices in enumerate(c.kind_devices):
        heaviest = [_heaviest(c, np.flatnonzero(start == d), k) for d in devices]
        used = [(d, v) for d, v in zip(devices, heaviest, strict=True) if v is not None]
        rest = [d for d, v in zip(devices, heaviest, strict=True) if v is None]
        for new, old in zip(devices, [d for d, _ in used] + rest, strict=True):
            renamed[start == old] = new
        pivots.append([v for _, v in used])
    return renamed, pivots


def _heaviest(c: Contraction, nodes: IntArray, k: int) -> int | None:
    return None if not len(nodes) else int(nodes[c.work_s[nodes, k].argmax()])


def _build(
    c: Contraction,
    pivots: Sequence[Sequence[int]],
    value_s: float,
    start: IntArray,
    among: Sequence[int],
) -> _Model:
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    largest = model.add_variable(lb=0.0, ub=UNITS * (1 + 1e-6))
    m = _Model(model, [[None] * sum(c.counts) for _ in range(c.nodes)], largest)
    for k, devices in enumerate(c.kind_devices):
        for v in range(c.nodes):
            last = pivots[k].index(v) + 1 if v in pivots[k] else len(devices)
            fits = c.work_s[v, k] <= value_s * (1 + 1e-9)
            for d in devices[:last] if fits else ():
                if not among or d == start[v] or (d in among and start[v] in among):
                    m.x[v][d] = model.add_binary_variable()
    for row in m.x:
        model.add_linear_constraint(mathopt.fast_sum(x for x in row if x is not None) == 1)
    for k, devices in enumerate(c.kind_devices):
        for d in devices:
            _load(c, m, k, d, value_s)
            _memory(c, m, k, d)
    model.minimize(largest)
    return m


def _load(c: Contraction, m: _Model, k: int, d: int, value_s: float) -> None:
    from ortools.math_opt.python import mathopt

    on = [row[d] for row in m.x]
    parts = [float(c.work_s[v, k] / value_s * UNITS) * x for v, x in enumerate(on) if x is not None]
    for members, size in zip(c.members, c.moved_bytes.tolist(), strict=True):
        price = size * float(c.host_rate[k]) / value_s * UNITS
        if price > 0:
            parts.append(price * _cut(m.model, [on[v] for v in members]))
    m.model.add_linear_constraint(mathopt.fast_sum(parts) <= m.largest)


def _cut(model: Any, on: Sequence[Any]) -> Any:
    """A variable that is one where some of `on` are one and some are not."""
    cut = model.add_variable(lb=0.0, ub=1.0)
    for a in on:
        for b in on:
            if a is not b and a is not None:
                model.add_linear_constraint(cut >= (a if b is None else a - b))
    return cut


def _memory(c: Contraction, m: _Model, k: int, d: int) -> None:
    from ortools.math_opt.python import mathopt

    limit = float(c.memory_bytes[k])
    if c.resident_bytes.sum() <= limit:
        return
    share = c.resident_bytes / max(limit, 1.0)
    held = [float(share[v]) * row[d] for v, row in enumerate(m.x) if row[d] is not None]
    m.model.add_linear_constraint(mathopt.fast_sum(held) <= limit / max(limit, 1.0))
