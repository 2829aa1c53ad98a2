"""A core as a mixed-integer program for HiGHS, with the memory rows it breaks added as it goes.

One variable per option, one per pair of options on an edge (the local polytope, whose relaxation
is what message passing bounds); a row per moment only once an answer breaks it. The program with
some of its rows bounds the whole, so every bound is true; an answer counts only if it fits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.solvers._memory_core import Core, expected, loaded
from placewright.solvers.highs import HighsSolver

ROWS_AT_ONCE = 12
GOOD_OBJECTIVE = 1e8
"""The optimum's size after scaling, so that HiGHS's absolute tolerances are small beside it."""

MARGIN = 1e-4
"""Taken off every scaled bound: a hundred times HiGHS's tolerance, 1e-12 of the optimum."""

BROKEN = 1e-7
"""A relaxed row that is overstepped by less than this share counts as kept."""


class Program(NamedTuple):
    """Sparse rows; column ``option[a]`` is option a, -1 where it is forbidden."""

    cost: FloatArray
    option: IntArray
    begin: IntArray
    column: IntArray
    entry: FloatArray
    side: FloatArray


def program_of(core: Core) -> Program:
    """One option per node; on every edge the pairs agree with the options."""
    a = core.arrays
    # Allowed options are numbered through; pairs get the columns after them, edge by edge.
    option = np.where(a.cost < np.inf, np.cumsum(a.cost < np.inf) - 1, -1)
    cost, top = [a.cost[option >= 0]], int((option >= 0).sum())
    lines: list[tuple[IntArray, FloatArray, float]] = []
    for i in range(len(a.start) - 1):
        own = option[a.start[i] : a.start[i + 1]]
        lines.append((own[own >= 0], np.ones(int((own >= 0).sum())), 1.0))
    for (i, j), at in zip(a.ends.tolist(), a.matrix.tolist(), strict=True):
        rows, columns = option[a.start[i] : a.start[i + 1]], option[a.start[j] : a.start[j + 1]]
        matrix = a.pool[at : at + len(rows) * len(columns)].reshape(len(rows), len(columns))
        fine = (matrix < np.inf) & (rows >= 0)[:, None] & (columns >= 0)
        pair = np.where(fine, np.cumsum(fine.ravel()).reshape(fine.shape) - 1 + top, -1)
        top += int(fine.sum())
        cost.append(matrix[fine])
        lines += [_consistency_row(pair[r], rows[r]) for r in range(len(rows)) if rows[r] >= 0]
        lines += [
            _consistency_row(pair[:, c], columns[c]) for c in range(len(columns)) if columns[c] >= 0
        ]
    return Program(
        np.concatenate(cost),
        option,
        np.cumsum([0, *(len(line[0]) for line in lines)]),
        np.concatenate([np.zeros(0, np.int64), *(line[0] for line in lines)]),
        np.concatenate([np.zeros(0), *(line[1] for line in lines)]),
        np.array([line[2] for line in lines]),
    )


def _consistency_row(pairs: IntArray, option: int) -> tuple[IntArray, FloatArray, float]:
    there = pairs[pairs >= 0]
    return np.append(there, option), np.append(np.ones(len(there)), -1.0), 0.0


def prove(
    core: Core,
    start: IntArray | None,
    goal: float,
    deadline_s: float,
    found: Callable[[IntArray], None],
    bound: Callable[[float], None],
) -> bool:
    """Solve the core; ``True`` if that ran to its end.

    `start`: an assignment that fits, costing about `goal`.
    `found`, `bound`: called with every assignment (whether it fits is for the caller to check) and
    with every bound.
    """
    solver = _Solver(core, abs(goal) if math.isfinite(goal) else 0.0, deadline_s)
    # Rows are found by the relaxation, which is quick, before anything has to be whole.
    while True:
        if not solver.run():
            return False
        bound(solver.value)
        if not solver.add_broken(solver.relaxed()):
            break
    solver.require_whole()
    while True:
        finished = solver.run(start)
        if finished is None:  # HiGHS's bound is then 0, which it says after every linear program
            return False
        bound(solver.bound)
        if solver.infeasible:
            bound(math.inf)
            return True
        choice = solver.choice()
        if choice is None:
            return False
        found(choice)
        over = loaded(core.arrays, core.loads, choice) - core.loads.room
        # An answer that breaks a row cuts itself off by it; one whose row is there breaks it by
        # HiGHS's tolerance, and nothing more can be done.
        if over.max(initial=0) <= 0 or not solver.add(int(np.argmax(over))):
            return finished
        if not finished:
            return False


class _Solver:
    """HiGHS with this core in it."""

    def __init__(self, core: Core, size: float, deadline_s: float) -> None:
        self.core, self.deadline_s, self.added = core, deadline_s, set[int]()
        self.program = p = program_of(core)
        self.scale = (size or float(p.cost.max(initial=0.0)) or 1.0) / GOOD_OBJECTIVE
        self.runner = HighsSolver(random_seed=1, mip_rel_gap=0.0, mip_abs_gap=0.0)
        self.highs, highspy = self.runner.highs, self.runner.package
        self.ended, self.infeasible = highspy.HighsModelStatus, False
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(p.cost), len(p.side)
        lp.col_cost_ = p.cost / self.scale
        lp.col_lower_, lp.col_upper_ = np.zeros(len(p.cost)), np.ones(len(p.cost))
        lp.row_lower_ = lp.row_upper_ = p.side
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = p.begin, p.column
        lp.a_matrix_.value_ = p.entry
        self.highs.passModel(lp)

    def run(self, start: IntArray | None = None) -> bool | None:
        """Whether it came to its end before the deadline; ``None`` where it was not begun."""
        left_s = self.deadline_s - time.perf_counter()
        if left_s <= 0.05:
            return None
        if start is not None:
            self._begin_with(start)
        status = self.runner.run(left_s)
        if self.runner.interrupted:
            raise KeyboardInterrupt
        self.infeasible = status == self.ended.kInfeasible
        return bool(status in (self.ended.kOptimal, self.ended.kInfeasible))

    @property
    def value(self) -> float:
        """Lower bound by the relaxation."""
        return math.inf if self.infeasible else self._info("objective_function_value")

    @property
    def bound(self) -> float:
        """No assignment is cheaper."""
        return self._info("mip_dual_bound")

    def _info(self, key: str) -> float:
        value = float(getattr(self.highs.getInfo(), key))
        return (value - MARGIN) * self.scale if abs(value) < 1e30 else -math.inf

    def relaxed(self) -> FloatArray:
        """Every option's share in the answer."""
        shares = np.asarray(self.highs.getSolution().col_value, dtype=np.float64)
        option = self.program.option
        return np.where(option >= 0, shares[np.maximum(option, 0)], 0.0)

    def choice(self) -> IntArray | None:
        """The answer's largest option at every node."""
        if not self.highs.getSolution().value_valid:
            return None
        shares, start = self.relaxed(), self.core.arrays.start
        ends = zip(start[:-1].tolist(), start[1:].tolist(), strict=True)
        return np.array([int(np.argmax(shares[a:b])) for a, b in ends], dtype=np.int64)

    def add_broken(self, shares: FloatArray) -> bool:
        """Add the rows that are overstepped most, far from each other; whether there are any."""
        loads = self.core.loads
        used = expected(self.core.arrays, loads, shares)
        over = (used - loads.room) / np.maximum(loads.room, 1)
        near, any_new = max(1, len(over) // 200), False
        for _ in range(ROWS_AT_ONCE):
            worst = int(np.argmax(over)) if len(over) else 0
            if not len(over) or over[worst] <= BROKEN:
                break
            any_new = self.add(worst) or any_new
            # Rows near each other are nearly the same row.
            over[max(0, worst - near) : worst + near] = 0.0
        return any_new

    def add(self, row: int) -> bool:
        """Add a memory row, divided by what divides all of it; ``False`` if it is there."""
        if row in self.added:
            return False
        self.added.add(row)
        column, use = _memory_row(self.core, self.program, row)
        # Usages are whole: what the room has beyond a multiple of the divisor cannot be used.
        unit = int(np.gcd.reduce(use))
        room = float(self.core.loads.room[row] // unit)
        # Rows of about a thousand: bytes would drown HiGHS's absolute tolerance.
        entry, size = use / unit, max(1.0, room / 1e3)
        lowest = -math.inf
        self.highs.addRow(lowest, room / size, len(column), column.astype(np.int32), entry / size)
        return True

    def require_whole(self) -> None:
        """From now on options are taken or not."""
        kind = self.runner.package.HighsVarType.kInteger
        whole = self.program.option[self.program.option >= 0].astype(np.int32)
        self.highs.changeColsIntegrality(len(whole), whole, np.array([kind] * len(whole)))

    def _begin_with(self, choice: IntArray) -> None:
        option = self.program.option[self.core.arrays.start[:-1] + choice]
        if (option < 0).any():
            return
        whole = self.program.option[self.program.option >= 0]
        value = np.zeros(len(whole))
        value[option] = 1.0
        self.highs.setSolution(len(whole), whole.astype(np.int32), value)


def _memory_row(core: Core, program: Program, row: int) -> tuple[IntArray, IntArray]:
    """Columns and usages of one moment."""
    loads, start = core.loads, core.arrays.start
    columns, uses = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    covering = np.flatnonzero((loads.low <= row) & (row < loads.high))
    nodes = np.searchsorted(loads.first, covering, side="right") - 1
    for i, p in zip(nodes.tolist(), covering.tolist(), strict=True):
        use = loads.use[loads.block[p] : loads.block[p] + start[i + 1] - start[i]]
        column = program.option[start[i] : start[i + 1]]
        there = (use > 0) & (column >= 0)
        columns.append(column[there])
        uses.append(use[there])
    return np.concatenate(columns), np.concatenate(uses)
