"""The bound: solve, forbid, cut, and again; then branch.

What HiGHS says of a linear program is not taken at its word: from its multipliers y, of the right
sign, the bound is

    sum over rows of y * (the side of the row that binds) + sum over columns of the least of
    (cost - y A) z with z between 0 and the column's top,

which holds whatever y is (Neumaier, Shcherbina, Math. Program. 99, 2004,
doi:10.1007/s10107-003-0433-3). What it proves by branching, with whole x, is lowered by a thousand
times its tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.operators.bounding.relaxed.cuts import cuts_of
from placewright.operators.bounding.relaxed.program import END, WHOLE, Choices, Program
from placewright.operators.problem import OperatorProblem
from placewright.solvers.highs import HighsSolver

MARGIN = 1e-6
"""Share of the whole that is taken off the bounds of branching."""

OVERRUN = 2.0
"""HiGHS may branch so many times as long as its limit, where it is at the root for long."""

BRANCHING = {"solver": "choose", "mip_rel_gap": 0.0, "mip_heuristic_effort": 0.0}
"""Bounds are wanted, not solutions."""


class Solver:
    """The program in HiGHS; rows that it does not have yet are added before it is solved."""

    def __init__(self, program: Program) -> None:
        self.program, self.changed = program, True
        self.values: FloatArray = np.zeros(len(program.top))
        self.top: FloatArray = np.array(program.top)
        self.cost: FloatArray = np.zeros(len(self.top))
        self.cost[END] = 1.0
        self.known, self.slowest_s = 0, 0.0
        self.runner = HighsSolver(solver="ipm")
        self.package, self.highs = self.runner.package, self.runner.highs
        none = np.zeros(0, dtype=np.int32)
        begin = np.zeros(len(self.top), dtype=np.int32)
        lower = np.zeros(len(self.top))
        self.highs.addCols(len(self.top), self.cost, lower, self.top, 0, begin, none, none)

    def forbid(self, wrong: BoolArray) -> None:
        """Groups that may no longer be on devices, shape (groups, m)."""
        for column in self.program.of_group[wrong].tolist():
            self.top[column] = 0.0
            self.highs.changeColBounds(int(column), 0.0, 0.0)
            self.changed = True

    def solve(self, deadline_s: float) -> bool:
        """Whether there is a solution in time."""
        self._add_rows()
        begun = time.perf_counter()
        left_s = max(0.1, deadline_s - begun)
        self.runner.run(left_s)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - begun)
        # The first program is solved from nothing, the next ones from the basis of the last.
        self.highs.setOptionValue("solver", "simplex")
        self.changed = False
        solution = self.highs.getSolution()
        if self.interrupted or not solution.dual_valid:
            return False
        self.values = np.array(solution.col_value)
        self.multipliers: FloatArray = np.array(solution.row_dual)
        return True

    def branch(self, deadline_s: float) -> float:
        """The bound with every group as a whole on one device; Ctrl-C ends it sooner."""
        self._add_rows()
        whole = self.package.HighsVarType.kInteger
        for column in self.program.of_group[self.program.of_group >= 0].tolist():
            self.highs.changeColIntegrality(int(column), whole)
        for key, value in BRANCHING.items():
            self.highs.setOptionValue(key, value)
        left_s = max(0.1, (deadline_s - time.perf_counter()) / OVERRUN)
        self.runner.run(left_s)
        proved = float(self.highs.getInfo().mip_dual_bound)
        return proved - MARGIN * WHOLE if np.isfinite(proved) else 0.0

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the last run: it is up to the caller to pass it on."""
        return self.runner.interrupted

    def proved(self) -> tuple[float, FloatArray]:
        """The bound by the multipliers, and what each group on each device adds to it."""
        p, y = self.program, self.multipliers
        lower, upper = np.array(p.lower), np.array(p.upper)
        # A multiplier of the wrong sign for a one-sided row would bring in an infinite side.
        y = np.where((y > 0) & np.isinf(lower) | (y < 0) & np.isinf(upper), 0.0, y)
        side = np.where(y > 0, lower, np.where(y < 0, upper, 0.0))
        entries = np.concatenate(p.values) * np.repeat(y, [len(c) for c in p.columns])
        columns = np.concatenate(p.columns)
        reduced = self.cost - np.bincount(columns, entries, minlength=len(self.cost))
        value = float(y @ side + np.minimum(0.0, reduced) @ self.top)
        price = np.where(p.of_group >= 0, reduced[p.of_group], 0.0)
        return value, np.maximum(0.0, price)

    def _add_rows(self) -> None:
        p, first = self.program, self.known
        if first == len(p.lower):
            return
        counts = [len(c) for c in p.columns[first:]]
        begin = np.cumsum([0, *counts[:-1]]).astype(np.int32)
        columns = np.concatenate(p.columns[first:]).astype(np.int32)
        values = np.concatenate(p.values[first:])
        lower, upper = np.array(p.lower[first:]), np.array(p.upper[first:])
        self.highs.addRows(len(counts), lower, upper, len(values), begin, columns, values)
        self.known = len(p.lower)


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
    if best < value_s / unit_s and left_s > LEAST_SOLVES * solver.slowest_s:
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
