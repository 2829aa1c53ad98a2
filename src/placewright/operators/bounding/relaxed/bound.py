"""The bound: solve, forbid, cut, and again; then branch.

What HiGHS says of a linear program is not taken at its word: the bound is what its multipliers
prove (`placewright.solvers.programs.LinearProgram.proved`). What it proves by branching, with whole
x, is lowered by a thousand times its tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.operators.bounding.relaxed.cuts import cuts_of
from placewright.operators.bounding.relaxed.program import WHOLE, Choices, Program
from placewright.operators.problem import OperatorProblem
from placewright.solvers.programs import Solution

MARGIN = 1e-6
"""Share of the whole that is taken off the bounds of branching."""

OVERRUN = 2.0
"""HiGHS may branch so many times as long as its limit, where it is at the root for long."""

LEAST_S = 0.1
"""HiGHS is given so long even where the deadline is over."""


class Solver:
    """The program, solved again and again; rows that are new since are added before."""

    def __init__(self, program: Program) -> None:
        self.program, self.linear = program, program.linear
        self.answer, self.changed = Solution(), True

    def forbid(self, wrong: BoolArray) -> None:
        """Groups that may no longer be on devices, shape (groups, m)."""
        if wrong.any():
            self.linear.limit(self.program.of_group[wrong], 0.0)
            self.changed = True

    def solve(self, deadline_s: float) -> bool:
        """Whether there is a solution in time."""
        self.answer = self.linear.solve(deadline_s, LEAST_S)
        # The first program is solved from nothing, the next ones from the basis of the last.
        self.linear.set(solver="simplex")
        self.changed = False
        return not self.interrupted and self.answer.multipliers is not None

    @property
    def values(self) -> FloatArray:
        """Of the columns."""
        assert self.answer.values is not None
        return self.answer.values

    def branch(self, deadline_s: float) -> float:
        """The bound with every group as a whole on one device; Ctrl-C ends it sooner."""
        self.linear.require_whole(self.program.of_group)
        self.linear.set(solver="choose", mip_heuristic_effort=0.0)  # bounds, not solutions
        now_s = time.perf_counter()
        self.answer = self.linear.solve(now_s + (deadline_s - now_s) / OVERRUN, LEAST_S)
        proved = self.answer.bound
        return proved - MARGIN * WHOLE if np.isfinite(proved) else 0.0

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the last run: it is up to the caller to pass it on."""
        return self.answer.interrupted

    def proved(self) -> tuple[float, FloatArray]:
        """The bound by the multipliers, and what each group on each device adds to it."""
        assert self.answer.multipliers is not None
        value, reduced = self.linear.proved(self.answer.multipliers)
        of_group = self.program.of_group
        return value, np.maximum(0.0, np.where(of_group >= 0, reduced[of_group], 0.0))


ROOM = 1e-4
"""Above the known plan: it must stay a solution, so that nothing is ever proved by rounding."""

LEAST_GAIN = 1e-4 * WHOLE
"""Least rise of the bound in a round; after `MOST_IDLE_ROUNDS` with less it ends."""

MOST_IDLE_ROUNDS = 4

CUT_SHARE = 0.6
"""Share of the time that is spent on cuts, before branching begins."""

LEAST_SOLVES = 20.0
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
    if best < value_s / unit_s and left_s > LEAST_SOLVES * solver.linear.slowest_s:
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
        if idle > MOST_IDLE_ROUNDS or not (added or solver.changed):
            break
