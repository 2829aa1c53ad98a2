"""The linear program of samples in plain loops, row by row, solved by scipy.

Written from the model alone (`placewright.samples.judge` in words), with a dense matrix
and without a thought for speed. Its rows come in the families in which multipliers are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import linprog

from placewright.samples.flow_program import SLACK, Prices
from placewright.samples.problem import Batches, Duplex, Overlap, SampleProblem

Row = dict[Any, float]
"""Coefficients by variable: ``("T", 0)``, ``("M", rank)``, ``(i, j, c)``."""


@dataclass
class Reference:
    """Minimise `cost` under ``rows x <= limits``, x >= 0."""

    problem: SampleProblem
    cost: dict[Any, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    family: list[str] = field(default_factory=list)

    @property
    def moves(self) -> list[tuple[int, int, int]]:
        """Its columns that move samples."""
        return [key for key in self.cost if len(key) == 3]

    def matrix(self) -> Any:
        """Dense, shape (rows, variables)."""
        at = {key: k for k, key in enumerate(self.cost)}
        dense = np.zeros((len(self.rows), len(at)))
        for r, row in enumerate(self.rows):
            for key, value in row.items():
                dense[r, at[key]] += value
        return dense

    def solved(self) -> Any:
        """Scipy's answer."""
        cost = list(self.cost.values())
        return linprog(cost, A_ub=self.matrix(), b_ub=self.limits, method="highs")

    def value_s(self) -> float:
        """The least value, ``inf`` where nothing fits."""
        found = self.solved()
        p = self.problem
        return float(found.fun) + p.epochs * p.sync_s if found.status == 0 else float("inf")

    def prices(self, multipliers: Any) -> Prices:
        """Multipliers >= 0, one per row, by family."""
        p = self.problem
        names = list(dict.fromkeys(f for f in self.family if f.startswith("time")))
        of = {
            f: np.array([y for y, g in zip(multipliers, self.family, strict=True) if g == f])
            for f in {*self.family, "stock", "stored", "over", "under", "ranked"}
        }
        shape = (p.n, p.k)
        none = np.zeros(shape)
        return Prices(
            rows=tuple(of[name] for name in names),
            stock=of["stock"].reshape(shape),
            stored=of["stored"],
            mix_over=of["over"].reshape(shape) if len(of["over"]) else none,
            mix_under=of["under"].reshape(shape) if len(of["under"]) else none,
            ranked=float(of["ranked"].sum()),
        )


def reference(p: SampleProblem, slack: float = SLACK) -> Reference:
    """The whole program of `p`, every move a column; mixes may be missed by `slack` samples."""
    lp = Reference(p)
    nodes, kinds = range(p.n), range(p.k)
    linked = [(i, j) for i in nodes for j in nodes if np.isfinite(p.send_s[i, j])]
    alone = p.batches is Batches.EQUAL and p.overlap is Overlap.STAGGERED
    together = alone or p.overlap is Overlap.BARRIER
    equal = p.batches is Batches.EQUAL
    lp.cost = {("T", 0): 1.0} | ({("T", 1): 1.0} if together else {})
    lp.cost |= {("M", r): 0.0 for r in nodes} if equal else {}
    lp.cost |= {(i, j, c): p.price_s[i, j] for i, j in linked for c in kinds}

    def add(family: str, row: Row, limit: float) -> None:
        lp.rows.append(row)
        lp.limits.append(limit)
        lp.family.append(family)

    def ports(i: int, sends: float, receives: float) -> Row:
        row = {m: sends * p.send_s[i, m[1]] for m in lp.moves if m[0] == i}
        return row | {m: receives * p.receive_s[m[0], i] for m in lp.moves if m[1] == i}

    def holds(i: int, factor: float, kind: int | None = None) -> Row:
        """`factor` times what arrives less what leaves."""
        mine = [m for m in lp.moves if kind is None or m[2] == kind]
        row = {m: -factor for m in mine if m[0] == i}
        return row | {m: factor for m in mine if m[1] == i}

    work, fixed, held = p.epochs * p.seconds_per_sample, p.epochs * p.fixed_s, p.samples.sum(axis=1)
    joined = p.overlap is Overlap.STAGGERED and not together
    for s, r in [(1.0, 1.0)] if p.duplex is Duplex.HALF else [(1.0, 0.0), (0.0, 1.0)]:
        for i in nodes:
            own = plus(ports(i, s, r), holds(i, work[i])) if joined else ports(i, s, r)
            spent = work[i] * held[i] + fixed[i] if joined else 0.0
            add(f"time {s} {r}", plus(own, {("T", 0): -1.0}), -spent)
    last = ("T", 1) if together else ("T", 0)
    slowest_first = sorted(nodes, key=lambda i: -work[i])
    if equal:
        for i in nodes:
            rank = slowest_first.index(i)
            add("time held", plus(holds(i, 1.0), {("M", rank): -1.0}), -float(held[i]))
    elif not joined:
        for i in nodes:
            row = plus(holds(i, work[i]), {last: -1.0})
            add("time held", row, -(work[i] * held[i] + fixed[i]))
    for i in nodes:
        for c in kinds:
            row = {m: 1.0 for m in lp.moves if m[0] == i and m[2] == c}
            row |= {m: -1.0 for m in lp.moves if p.relay and m[1] == i and m[2] == c}
            add("stock", row, float(p.samples[i, c] - p.keep[i, c]))
    for i in nodes:
        if np.isfinite(p.storage[i]):
            add("stored", holds(i, 1.0), float(np.floor(p.storage[i]) - held[i]))
    if np.isfinite(p.label_mix):
        share = p.samples.sum(axis=0) / p.samples.sum()
        for side, sign in (("over", 1.0), ("under", -1.0)):
            for i in nodes:
                for c in kinds:
                    part = share[c] + sign * p.label_mix
                    row = plus(holds(i, sign, c), holds(i, -sign * part))
                    off = sign * (p.samples[i, c] - part * held[i])
                    add(side, row, slack - float(off))
    if equal:
        steps = [work[i] for i in slowest_first] + [0.0]
        row = {("M", r): steps[r] - steps[r + 1] for r in nodes}
        add("ranked", plus(row, {last: -1.0}), -float(fixed.max()))
        for r in nodes[1:]:
            add("order", {("M", r - 1): 1.0, ("M", r): -1.0}, 0.0)
    return lp


def plus(*rows: Row) -> Row:
    """Their sum."""
    total: Row = {}
    for row in rows:
        for key, value in row.items():
            total[key] = total.get(key, 0.0) + value
    return total
