"""The bound: solve, forbid, cut, and again; then branch."""

from __future__ import annotations

import time
from collections.abc import Iterator

from placewright.operators.bounding.relaxed.choices import Choices
from placewright.operators.bounding.relaxed.cuts import cuts_of
from placewright.operators.bounding.relaxed.program import WHOLE, Program
from placewright.operators.bounding.relaxed.solver import Solver
from placewright.operators.problem import OperatorProblem

ROOM = 1e-4
"""Above the known plan: it must stay a solution, so that nothing is ever proved by rounding."""

LEAST_GAIN = 1e-4 * WHOLE
"""Of a round; after `PATIENCE` rounds with less it ends."""

PATIENCE = 4

CUT_SHARE = 0.6
"""Of the time, before branching begins."""

MUCH = 20.0
"""Branching begins where so many of the slowest linear programs would still fit the time."""


def relaxed_bounds(
    problem: OperatorProblem, bound_s: float, value_s: float, deadline_s: float
) -> Iterator[float]:
    """Ever higher lower bounds on the latency of any plan, seconds.

    Raises `KeyboardInterrupt`: after the last bound that was proved.

    Parameters
    ----------
    bound_s
        A lower bound, above zero.
    value_s
        Of a plan that fits. What is returned is no more.
    deadline_s
        ``time.perf_counter()`` at which it ends with what it has.
    """
    begun, unit_s = time.perf_counter(), bound_s / WHOLE
    choices = Choices(problem, unit_s, value_s / unit_s * (1.0 + ROOM))
    solver, best = Solver(Program(choices)), 0.0
    for best in _cut(solver, choices, begun + CUT_SHARE * (deadline_s - begun)):
        yield min(best * unit_s, value_s)
    _raise_if_interrupted(solver)
    left_s = deadline_s - time.perf_counter()
    if best < value_s / unit_s and left_s > MUCH * solver.slowest_s:
        yield min(max(best, solver.branch(deadline_s)) * unit_s, value_s)
        _raise_if_interrupted(solver)


def _raise_if_interrupted(solver: Solver) -> None:
    """Ctrl-C ended the solver, which kept what it had; now it ends the rest."""
    if solver.interrupted:
        raise KeyboardInterrupt


def _cut(solver: Solver, choices: Choices, deadline_s: float) -> Iterator[float]:
    """Rounds of solving, forbidding and cutting; the best bound after each."""
    cuts, best, idle, turn = cuts_of(solver.program), 0.0, 0, 0
    cuts.begin(choices.head, choices.tail)
    while time.perf_counter() < deadline_s and solver.solve(deadline_s):
        value, price = solver.proved()
        idle = 0 if value > best + LEAST_GAIN else idle + 1
        best = max(best, value)
        yield best
        solver.forbid(choices.by_price(value, price))
        solver.forbid(choices.by_path())
        added, turn = cuts.add(turn, solver.values, choices.head, choices.tail), turn + 1
        if idle > PATIENCE or not (added or solver.changed):
            break
