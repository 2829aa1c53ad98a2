"""Bounds against the best of all plans."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.planning.contract import BoundContext
from placewright.planning.solving import solve
from placewright.samples.bounds import bounds, refined_bounds, relaxation
from placewright.samples.column_generation import bound_and_columns, generate_columns, price
from placewright.samples.flow_program import (
    FlowProgram,
    Master,
    Moves,
    Prices,
    all_moves,
    program_of,
)
from placewright.samples.problem import REGIMES, Batches, Overlap, generate
from tests.samples.tiny import best_of, random_tiny, tiny


@pytest.mark.parametrize("seed", range(40))
def test_no_plan_is_below_a_bound(seed: int) -> None:
    """Three nodes, all modes and limits, every plan tried."""
    problem = random_tiny(seed)
    best = best_of(seed)
    try:
        proved = bounds(problem) | refined_bounds(problem)
    except InfeasibleError:
        assert best == np.inf
        return
    assert max(proved.values()) <= best
    assert proved["lp"] > 0.5 * best if np.isfinite(best) else True


@pytest.mark.parametrize("seed", range(10))
def test_any_multipliers_bound(seed: int) -> None:
    """Lagrange's bound holds for nonsense multipliers too."""
    problem = random_tiny(seed)
    program, rng = program_of(problem), np.random.default_rng(seed)
    nonsense = Prices(
        rows=tuple(rng.exponential(size=problem.n) for _ in program.rows),
        stock=rng.exponential(size=program.stock.shape),
        stored=rng.exponential(size=len(program.stored)),
        mix_over=np.zeros(program.stock.shape),
        mix_under=np.zeros(program.stock.shape),
        ranked=float(rng.exponential()),
    )
    bound, _, _ = bound_and_columns(price(program, nonsense), 2)
    assert bound <= best_of(seed)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("batches", Batches)
def test_value_and_bound_meet(regime: str, overlap: Overlap, batches: Batches) -> None:
    """Column generation ends where the program with all columns does (strong duality)."""
    problem = generate(regime, 70, 1).replace(overlap=overlap, batches=batches)
    relaxed = relaxation(problem)
    whole = Master(program_of(problem))
    whole.add(all_moves(problem))
    assert whole.solve(np.inf)
    assert relaxed.finished
    assert relaxed.lower_bound_s <= whole.value_s * (1 + 1e-7) <= relaxed.value_s * (1 + 2e-7)
    assert relaxed.lower_bound_s == pytest.approx(whole.value_s, rel=3e-4)


def test_relays_beat_direct_moves() -> None:
    """A bound that knew direct moves only would be wrong where a third node helps."""
    pair = np.full((3, 3), np.inf)
    pair[0, 1] = pair[1, 0] = pair[1, 2] = pair[2, 1] = 0.01
    pair[0, 2] = pair[2, 0] = 1.0
    direct = tiny([90, 0, 0], send_s=pair)
    assert relaxation(direct.replace(relay=True)).value_s < 0.99 * relaxation(direct).lower_bound_s


def test_a_mix_that_nobody_can_reach_is_infeasible() -> None:
    """Samples of one class may not leave, and the node's share of it is too large."""
    problem = tiny([[40, 0], [0, 40]], keep=np.array([[40, 0], [0, 40]]), label_mix=0.1)
    with pytest.raises(InfeasibleError, match="label mix"):
        relaxation(problem)


@pytest.mark.parametrize("planner", ["auto", "lp", "ilp", "greedy"])
def test_no_relaxation_is_solved_without_the_limit(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor again once the time is up: what is proved by then is the bound."""
    calls: list[tuple[int, float]] = []

    def noted(
        program: FlowProgram, moves: Moves, deadline_s: float, *arguments: Any, **options: Any
    ) -> Any:
        calls.append((len(moves), deadline_s - time.perf_counter()))
        return generate_columns(program, moves, deadline_s, *arguments, **options)

    monkeypatch.setattr("placewright.samples.bounds.generate_columns", noted)
    result = solve(generate("moderate", 9, 1), planner, time_limit_s=7)
    assert len(calls) == 1
    assert calls[0][1] <= 7
    assert result.bound_names["lp"] > 0.9 * result.value
    cut = generate("moderate", 80, 1)
    begun = relaxation(cut, time.perf_counter() + 0.02)
    known = BoundContext(1e9, 0.0, time.perf_counter(), auto=planner == "auto")
    assert refined_bounds(cut, known) == {"lp": begun.lower_bound_s}
    assert len(calls) == 2
    assert refined_bounds(generate("mild", 9, 2), replace(known, auto=True)) == {}
