"""Compile time is counted, and does not count as planning time."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

import numba
import numpy as np
import pytest

from placewright.interpreter import python_command, python_environment
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


found: list[float] = []


@dataclass(frozen=True, slots=True)
class CompilesFirst(Compiles):
    """Finds the better plan only in what is left of its time after compiling."""

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The second device takes longer."""
        if not found:
            found.append(context.remaining_s())
            numba.njit(lambda x: x + 1)(1)
            time.sleep(max(0.0, context.remaining_s()))
            return OperatorPlan(np.ones(problem.n, dtype=np.int64))
        found.append(context.remaining_s())
        return OperatorPlan(np.zeros(problem.n, dtype=np.int64))


def test_a_planner_whose_time_went_into_compiling_plans_again() -> None:
    """What it answers does not depend on what was compiled before, and it gets no extra time."""
    found.clear()
    result = solve(TWO, CompilesFirst(), time_limit_s=0.02)
    assert result.value == 6.0
    assert len(found) == 2
    assert found[1] <= found[0]


def test_what_is_compiled_counts_where_numba_is_imported_later() -> None:
    """In a process that has not planned yet."""
    script = """
from placewright.numerics.clocks import CompileClock
with CompileClock(lambda: None) as clock:
    from placewright.numerics.njit import njit_cached
    import numba
    numba.njit(lambda x: x + 1)(1)
assert clock.seconds > 0
"""
    subprocess.run(python_command("-c", script), env=python_environment(), check=True, timeout=60)


def test_what_is_compiled_inside_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nested events on a clock of whole seconds."""
    ticks = iter([0.0, 3.0, 4.0, 9.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    began = []
    clock = CompileClock(lambda: began.append(True))
    for step in (clock.start, clock.start, clock.stop, clock.stop, clock.start, clock.stop):
        step()
    assert clock.seconds == 3.0 + 5.0
    assert len(began) == 2
