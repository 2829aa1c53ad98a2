"""A core as a mixed-integer program for HiGHS, with the memory rows it breaks added as it goes.

One variable per option, one per pair of options on an edge (the local polytope, whose relaxation
is what message passing bounds); a row per moment only once an answer breaks it. The program with
some of its rows bounds the whole, so every bound is true; an answer counts only if it fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.solvers._memory_core import Core, expected, loaded
from placewright.solvers.programs import LinearProgram, Solution

ROWS_AT_ONCE = 12
GOOD_OBJECTIVE = 1e8
"""The optimum's size after scaling, so that HiGHS's absolute tolerances are small beside it."""

MARGIN = 1e-4
"""Taken off every scaled bound: a hundred times HiGHS's tolerance, 1e-12 of the optimum."""

LEAST_S = 0.05
"""With less time than this left, nothing is begun."""

BROKEN = 1e-7
"""A relaxed row that is overstepped by less than this share counts as kept."""


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
    model = _Model(core, abs(goal) if math.isfinite(goal) else 0.0, deadline_s)
    # Rows are found by the relaxation, which is quick, before anything has to be whole.
    while True:
        answer = model.solve()
        bound(model.unscaled(answer.bound))
        if answer.values is None or not answer.proved:
            return answer.infeasible
        if not model.add_broken(model.shares(answer)):
            break
    model.program.require_whole(model.option)
    while True:
        model.begin_with(start)
        answer = model.solve()
        bound(model.unscaled(answer.bound))
        if answer.values is None:
            return answer.infeasible
        choice = model.choice(answer)
        found(choice)
        over = loaded(core.arrays, core.loads, choice) - core.loads.room
        # An answer that breaks a row cuts itself off by it; one whose row is there breaks it by
        # HiGHS's tolerance, and nothing more can be done.
        if over.max(initial=0) <= 0 or not model.add(int(np.argmax(over))):
            return answer.proved
        if not answer.proved:
            return False


class _Model:
    """The core's program; `option`: the column of every option, -1 where it is forbidden."""

    def __init__(self, core: Core, size: float, deadline_s: float) -> None:
        self.core, self.deadline_s, self.added = core, deadline_s, set[int]()
        a, self.program = core.arrays, LinearProgram(seed=1)
        dearest = max(float(cost[cost < np.inf].max(initial=0.0)) for cost in (a.cost, a.pool))
        self.scale = (size or dearest or 1.0) / GOOD_OBJECTIVE
        cost = a.cost / self.scale
        self.option = self.program.columns(len(cost), high=1.0, cost=cost, where=cost < np.inf)
        node = np.repeat(np.arange(len(a.start) - 1), np.diff(a.start))
        one = self.program.rows(len(a.start) - 1, 1.0, 1.0)
        self.program.enter(one[node], self.option, 1.0)
        for (i, j), at in zip(a.ends.tolist(), a.matrix.tolist(), strict=True):
            first, second = (self.option[a.start[k] : a.start[k + 1]] for k in (i, j))
            self._edge(first, second, at)

    def _edge(self, first: IntArray, second: IntArray, at: int) -> None:
        """The pairs of an edge agree with the options at both its ends."""
        shape = len(first), len(second)
        cost = self.core.arrays.pool[at : at + len(first) * len(second)].reshape(shape) / self.scale
        fine = (cost < np.inf) & (first >= 0)[:, None] & (second >= 0)
        pair = self.program.columns(shape, high=1.0, cost=cost, where=fine)
        for option, pairs in ((first, pair), (second, pair.T)):
            agree = self.program.rows(len(option), 0.0, 0.0, where=option >= 0)
            self.program.enter(agree[:, None], pairs, 1.0)
            self.program.enter(agree, option, -1.0)

    def solve(self) -> Solution:
        """What it came to before the deadline; nothing where it was not begun."""
        answer = self.program.solve(self.deadline_s - LEAST_S)
        if answer.interrupted:
            raise KeyboardInterrupt
        return answer

    def unscaled(self, bound: float) -> float:
        """No assignment is cheaper."""
        return (bound - MARGIN) * self.scale

    def shares(self, answer: Solution) -> FloatArray:
        """Every option's share in the answer."""
        assert answer.values is not None
        return np.where(self.option >= 0, answer.values[self.option], 0.0)

    def choice(self, answer: Solution) -> IntArray:
        """The answer's largest option at every node."""
        shares, start = self.shares(answer), self.core.arrays.start
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
        column, use = self._memory_row(row)
        # Usages are whole: what the room has beyond a multiple of the divisor cannot be used.
        unit = int(np.gcd.reduce(use))
        room = float(self.core.loads.room[row] // unit)
        # Rows of about a thousand: bytes would drown HiGHS's absolute tolerance.
        size = max(1.0, room / 1e3)
        self.program.enter(self.program.rows(high=room / size), column, use / unit / size)
        return True

    def begin_with(self, choice: IntArray | None) -> None:
        """Begin the next solve at an assignment, where there is one that is allowed."""
        if choice is None:
            return
        taken = self.core.arrays.start[:-1] + choice
        if (self.option[taken] >= 0).all():
            value = np.zeros(len(self.option))
            value[taken] = 1.0
            self.program.start(self.option, value)

    def _memory_row(self, row: int) -> tuple[IntArray, IntArray]:
        """Columns and usages of one moment."""
        loads, start = self.core.loads, self.core.arrays.start
        columns, uses = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        covering = np.flatnonzero((loads.low <= row) & (row < loads.high))
        nodes = np.searchsorted(loads.first, covering, side="right") - 1
        for i, p in zip(nodes.tolist(), covering.tolist(), strict=True):
            use = loads.use[loads.block[p] : loads.block[p] + start[i + 1] - start[i]]
            column = self.option[start[i] : start[i + 1]]
            there = (use > 0) & (column >= 0)
            columns.append(column[there])
            uses.append(use[there])
        return np.concatenate(columns), np.concatenate(uses)
