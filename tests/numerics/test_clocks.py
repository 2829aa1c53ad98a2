"""Compile time is counted, and does not count as planning time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from placewright.numerics.clocks import CompileClock
from placewright.operators.conformance import tiny
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context
from placewright.planning.solving import solve

TWO = tiny([[2.0, 5.0]] * 3, [(0, 0.0, [1]), (1, 0.0, [2])])


@dataclass(frozen=True, slots=True)
class Compiles:
    """Compiles a function of its own before it answers."""

    name: str = "compiles"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Everything."""
        return None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """All on the first device."""
        numba.njit(lambda x: x + 1)(1)
        return OperatorPlan(np.zeros(problem.n, dtype=np.int64))


def test_a_planner_that_compiles_is_not_charged_for_it() -> None:
    """The result says how long it was, the candidate's time has none of it."""
    solve(TWO, "heft")
    result = solve(TWO, Compiles())
    assert result.compile_s > 0
    assert result.candidates[0].runtime_s <= result.runtime_s - result.compile_s


def test_what_is_compiled_inside_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nested events on a clock of whole seconds."""
    ticks = iter([0.0, 3.0, 4.0, 9.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    began = []
    clock = CompileClock(lambda: began.append(True))
    start, end = SimpleNamespace(is_start=True), SimpleNamespace(is_start=False)
    for event in (start, start, end, end, start, end):
        clock.notify(event)
    assert clock.seconds == 3.0 + 5.0
    assert len(began) == 2
