"""The bound: solve, forbid, cut, and again; then branch."""

from __future__ import annotations

import time

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


def relaxed_bound(
    problem: OperatorProblem, bound_s: float, value_s: float, deadline_s: float
) -> float:
    """A lower bound on the latency of any plan, seconds.

    Parameters
    ----------
    bound_s
        A lower bound, above zero.
    value_s
        Of a plan that fits. What is returned is no more.
    deadline_s
        ``time.perf_counter()`` at which it ends with what it has.
    """
    begun = time.perf_counter()
    choices = Choices(problem, bound_s / WHOLE, value_s / bound_s * WHOLE * (1.0 + ROOM))
    solver = Solver(Program(choices))
    best = _cut(solver, choices, begun + CUT_SHARE * (deadline_s - begun))
    left_s = deadline_s - time.perf_counter()
    if best < value_s / bound_s * WHOLE and left_s > MUCH * solver.slowest_s:
        best = max(best, solver.branch(deadline_s))
    return min(best / WHOLE * bound_s, value_s)


def _cut(solver: Solver, choices: Choices, deadline_s: float) -> float:
    """Rounds of solving, forbidding and cutting; the best bound."""
    cuts, best, idle, turn = cuts_of(solver.program), 0.0, 0, 0
    cuts.begin(choices.head, choices.tail)
    while time.perf_counter() < deadline_s and solver.solve(deadline_s):
        value, price = solver.proved()
        idle = 0 if value > best + LEAST_GAIN else idle + 1
        best = max(best, value)
        solver.forbid(choices.by_price(value, price))
        solver.forbid(choices.by_path())
        added, turn = cuts.add(turn, solver.values, choices.head, choices.tail), turn + 1
        if idle > PATIENCE or not (added or solver.changed):
            break
    return best
