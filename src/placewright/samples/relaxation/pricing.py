"""What multipliers prove, and which columns they ask for.

For any multipliers >= 0 whose time rows add up to one per time, Lagrange's bound holds: the value
of every plan is at least

    constant + sum over moves of (reduced cost) x,        x >= 0,

and no more than `stock` samples (with relays: no more than there are, as no sample needs to
visit a node twice) leave a node, so that the sum is at least ``sum_ic most_ic min(0, least
reduced cost out of (i, c))``. The bound is therefore true at every moment of the column
generation, whatever the solver's tolerances: the multipliers are made to add up here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.relaxation.master import ALLOWED, Prices, mix_range, mix_sides
from placewright.samples.relaxation.program import Moves, Program


@dataclass(frozen=True, slots=True, eq=False)
class Pricing:
    """Reduced costs ``send[i] send_s + receive[j] receive_s + price + leave[i, c] + arrive[j, c]``.

    Attributes
    ----------
    constant_s
        Lagrange's bound without the moves.
    """

    program: Program
    send: FloatArray
    receive: FloatArray
    leave: FloatArray
    arrive: FloatArray
    constant_s: float

    def reduced_s(self, sample_class: int) -> FloatArray:
        """Shape (n, n): reduced cost of moving one sample; ``inf`` where there is no link."""
        p = self.program.problem
        with np.errstate(invalid="ignore"):
            cost = self.send[:, None] * p.send_s
            cost += self.receive[None, :] * p.receive_s
        cost += p.price_s
        cost += self.leave[:, sample_class, None]
        cost += self.arrive[None, :, sample_class]
        cost[~np.isfinite(p.send_s + p.receive_s)] = np.inf
        return cost

    def most(self, sample_class: int) -> FloatArray:
        """Shape (n,): samples of the class that may leave each node in a plan without detours."""
        p = self.program.problem
        if p.relay:
            return np.full(p.n, float(p.samples[:, sample_class].sum()))
        return self.program.stock[:, sample_class].astype(np.float64)


def price(program: Program, prices: Prices) -> Pricing:
    """Reduced costs and the constant, from multipliers that are made to add up."""
    prices = _scaled(program, prices)
    p = program.problem
    send, receive, per_sample = np.zeros(p.n), np.zeros(p.n), np.zeros(p.n)
    constant = program.constant_s
    for rows, y in zip(program.rows, prices.rows, strict=True):
        send += rows.out_weight * y
        receive += rows.in_weight * y
        per_sample += rows.weight * y
        constant += float(y @ (rows.weight * p.held + rows.fixed))
    constant += prices.ranked * float((p.epochs * p.fixed_s).max())
    per_sample[program.stored] += prices.stored
    free = np.floor(p.storage[program.stored]) - p.held[program.stored]
    constant -= float(prices.stored @ free)
    constant -= float((prices.stock * program.stock).sum())
    holding = np.repeat(per_sample[:, None], p.k, axis=1)
    if program.mixed:
        low, high = mix_range(program)
        over, under = prices.mix_over, prices.mix_under
        holding += over - under + (under @ low - over @ high)[:, None]
        side_over, side_under = mix_sides(program, ALLOWED)
        constant -= float((over * side_over + under * side_under).sum())
    leave = prices.stock - holding
    arrive = holding - (prices.stock if p.relay else 0.0)
    return Pricing(program, send, receive, leave, arrive, constant)


def _scaled(program: Program, prices: Prices) -> Prices:
    """Multipliers add up to one per time, however the solver rounded."""
    rows, ranked = list(prices.rows), max(prices.ranked, 0.0)
    for t in range(program.times):
        mine = [k for k, family in enumerate(program.rows) if family.time == t]
        shares = [ranked if program.rows[k].ranked else float(rows[k].sum()) for k in mine]
        total = sum(shares)
        for k in mine if total > 0 else ():
            if program.rows[k].ranked:
                ranked /= total
            else:
                rows[k] = rows[k] / total
    for k, family in enumerate(program.rows):
        if family.ranked:
            rows[k] = _carried(program, rows[k], ranked)
    return replace(prices, rows=tuple(rows), ranked=ranked)


def _carried(program: Program, y: FloatArray, ranked: float) -> FloatArray:
    """Multipliers of ``steps_i >= held_i`` that some multipliers of the ranks carry.

    From any rank on they must add up to at most `ranked` times the work of that rank's node.
    """
    work, ordered = program.problem.work_s[program.order], y[program.order]
    later = np.cumsum(ordered[::-1])[::-1]
    cap = np.minimum.accumulate(np.minimum(later, ranked * work))
    kept = np.empty(len(y))
    kept[program.order] = cap - np.append(cap[1:], 0.0)
    return np.maximum(kept, 0.0)


def bound_and_columns(pricing: Pricing, per_node: int) -> tuple[float, Moves, float]:
    """Lagrange's bound, the columns that pay most, and the least reduced cost.

    Parameters
    ----------
    per_node
        At most so many columns out of, and into, each node and class.
    """
    bound = pricing.constant_s
    found: list[tuple[IntArray, ...]] = []
    least = 0.0
    for c in range(pricing.program.problem.k):
        cost = pricing.reduced_s(c)
        best = cost.min(axis=1)
        bound += float(pricing.most(c) @ np.minimum(best, 0.0))
        least = min(least, float(best.min()))
        source, target = _cheapest(cost, per_node)
        found.append((source, target, np.full(len(source), c)))
    joined = [np.concatenate([part[f] for part in found]).astype(np.int64) for f in range(3)]
    return bound, Moves(*joined), least


def _cheapest(cost: FloatArray, per_node: int) -> tuple[IntArray, IntArray]:
    """Negative entries among the cheapest of their row or column."""
    n = len(cost)
    few = min(per_node, n - 1)
    chosen = np.zeros(cost.shape, dtype=np.bool_)
    np.put_along_axis(chosen, np.argpartition(cost, few, axis=1)[:, :few], True, axis=1)
    np.put_along_axis(chosen, np.argpartition(cost, few, axis=0)[:few], True, axis=0)
    source, target = np.nonzero(chosen & (cost < 0))
    return source.astype(np.int64), target.astype(np.int64)
