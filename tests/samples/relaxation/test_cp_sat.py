"""Integer rows admit every plan that the judge admits, at no more than its value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.samples.judge import SampleJudgement, judge
from placewright.samples.plan import plan_of
from placewright.samples.problem import Batches, SampleProblem
from placewright.samples.relaxation.cp_sat import MOST, whole_rows
from placewright.samples.relaxation.master import Master
from placewright.samples.relaxation.program import all_moves, program_of
from tests.samples.relaxation.clouds import cloud


@pytest.mark.parametrize("seed", range(24))
def test_no_plan_is_cut_off_by_rounding(seed: int) -> None:
    """Random moves in every mode: each row holds, sums stay far from 64 bits, the cost is less."""
    problem = cloud(seed)
    master = Master(program_of(problem), whole=True)
    master.add(all_moves(problem))
    rows = whole_rows(master)
    for judged in feasible(problem, seed):
        x = [*in_ticks(judged, master, rows.scale), 0, *counts(judged, master)]
        assert all(0 <= a <= b for a, b in zip(x, rows.top.tolist(), strict=True))
        for r, (begin, end) in enumerate(zip(rows.start[:-1], rows.start[1:], strict=True)):
            terms = [
                int(a) * x[c]
                for a, c in zip(rows.entry[begin:end], rows.column[begin:end], strict=True)
            ]
            assert sum(map(abs, terms)) < 2 * MOST
            assert rows.low[r] <= sum(terms) <= rows.high[r]
        ticks = sum(int(a) * b for a, b in zip(rows.cost, x, strict=True))
        least_s = (ticks - master.program.times) / rows.scale + master.program.constant_s
        assert least_s <= judged.value * (1 + 1e-9)


def feasible(problem: SampleProblem, seed: int) -> list[SampleJudgement]:
    """Plans that keep every limit, among them moving nothing if that does."""
    rng = np.random.default_rng(seed)
    shape = (problem.n, problem.n, problem.k)
    linked = np.isfinite(problem.send_s)[:, :, None]
    flows = [linked * (rng.random(shape) < p) * rng.integers(0, 6, shape) for p in (0, 0.1, 0.3)]
    judged = [judge(problem, plan_of(problem, flow)) for flow in flows]
    return [one for one in judged if one.feasible]


def in_ticks(judged: SampleJudgement, master: Master, scale: float) -> list[int]:
    """The times, rounded up, and with equal batches the most that the first ranks hold."""
    p = judged.problem
    ends = [judged.end_s.max()]
    if master.program.times == 2:
        ends = [judged.moved_s.max(), judged.trained_s.max()]
    held = judged.held.sum(axis=1)[master.program.order]
    ranks = np.maximum.accumulate(held).tolist()
    ranked = p.batches is Batches.EQUAL
    return [math.ceil(scale * t + 1e-3) for t in ends] + (ranks if ranked else [])


def counts(judged: SampleJudgement, master: Master) -> list[int]:
    """Samples per column."""
    plan, p = judged.plan, judged.problem
    flow = np.zeros((p.n, p.n, p.k), dtype=np.int64)
    flow[plan.source, plan.target, plan.sample_class] = plan.count
    moves = master.moves
    found: list[int] = flow[moves.source, moves.target, moves.sample_class].tolist()
    return found
