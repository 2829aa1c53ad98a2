"""A `Program` with some of its columns in HiGHS; more columns can be added and it goes on."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.relaxation.program import Moves, Program
from placewright.solvers.highs import HighsSolver

PROVED = 1e-6
"""Taken off what branching proves: HiGHS's relative tolerances."""

REDUCED = 1e-7
"""HiGHS's tolerance of a reduced cost: taken off for every sample that may move."""

Numbers = FloatArray | IntArray

SLACK = 0.5
"""Samples by which a label mix may be missed: half of what the judge allows is for rounding."""

WHOLE_SLACK = 1.0 - 2e-6
"""The same where nothing is rounded: what the judge allows, less the solver's tolerance."""

ALLOWED = 1.0
"""What the judge allows; a plan that needs all of it may break the mix by a hair."""

DEAR = 10.0
"""How much more than any plan's step a sample in the wrong place costs."""


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Multipliers of the rows, all >= 0.

    Attributes
    ----------
    rows
        One array of shape (n,) per family of time rows.
    stock
        Shape (n, k).
    stored
        Shape (len(program.stored),).
    mix_over, mix_under
        Shape (n, k): a class's share is too large, too small.
    ranked
        Equal batches: of the row that adds up what the ranks cost.
    """

    rows: tuple[FloatArray, ...]
    stock: FloatArray
    stored: FloatArray
    mix_over: FloatArray
    mix_under: FloatArray
    ranked: float = 0.0


class Master:
    """Rows fixed, columns growing.

    Columns: the times, then (equal batches) the steps of each rank, then the moves. Where they are
    whole, Ctrl-C ends a solve with what was found, and `interrupted` says so.

    `slack`: samples by which a label mix may be missed; without it `WHOLE_SLACK`, or `SLACK`.
    `most_missing`: samples by which storage and label mix may be missed at most, at a price.
    """

    def __init__(
        self,
        program: Program,
        *,
        whole: bool = False,
        slack: float | None = None,
        most_missing: float = math.inf,
    ) -> None:
        self.program, self.whole = program, whole
        self.runner = HighsSolver(stoppable=whole)
        self.package, self.solver = self.runner.package, self.runner.highs
        self.inf: float = self.package.kHighsInf
        self.moves = Moves(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
        self._add_times()
        self._add_rows((WHOLE_SLACK if whole else SLACK) if slack is None else slack)
        self._add_ranks()
        self._add_missing(most_missing)

    @property
    def first_move(self) -> int:
        """Columns before the first move."""
        return self._missing + 1

    @property
    def _ranked(self) -> bool:
        return any(rows.ranked for rows in self.program.rows)

    def _add_times(self) -> None:
        n, times = self.program.problem.n, self.program.times
        ranks = n if self._ranked else 0
        cost = np.append(np.ones(times), np.zeros(ranks))
        empty = np.zeros(0, dtype=np.int32)
        lower, upper = np.zeros(len(cost)), np.full(len(cost), self.inf)
        self.solver.addCols(
            len(cost), cost, lower, upper, 0, np.zeros(len(cost), dtype=np.int32), empty, empty
        )

    def _add_rows(self, slack: float) -> None:
        """Time rows, stock, storage, mix; in this order."""
        program = self.program
        problem, n = program.problem, program.problem.n
        rank = np.argsort(program.order)
        for rows in program.rows:
            # time - (what the moves change) >= what the node takes without them; moves come in
            # `columns`.
            lower = rows.weight * problem.held + rows.fixed
            column = program.times + rank if rows.ranked else np.full(n, rows.time)
            self._rows(lower, np.full(n, self.inf), column)
        self._rows(np.full(program.stock.size, -self.inf), program.stock.ravel().astype(float))
        stored = program.stored
        free = np.floor(problem.storage[stored]) - problem.held[stored]
        self._rows(np.full(len(stored), -self.inf), free)
        if program.mixed:
            for side in mix_sides(program, slack):
                self._rows(np.full(side.size, -self.inf), side.ravel())

    def _rows(self, lower: Numbers, upper: Numbers, column: IntArray | None = None) -> None:
        count = len(lower)
        entries = np.zeros(0, np.int32) if column is None else column.astype(np.int32)
        # One entry per row, or none.
        starts = np.arange(count, dtype=np.int32) if column is not None else np.zeros(count)
        self.solver.addRows(
            count,
            lower,
            upper,
            len(entries),
            starts.astype(np.int32),
            entries,
            np.ones(len(entries)),
        )

    def _add_ranks(self) -> None:
        """Training takes what its steps cost; a rank's steps are at least those before it."""
        if not self._ranked:
            return
        program, n = self.program, self.program.problem.n
        # The slowest node's steps at its cost, and each faster one's further steps at what they
        # add.
        time_column = next(rows.time for rows in program.rows if rows.ranked)
        rank_columns = np.arange(program.times, program.times + n)
        index = np.append(time_column, rank_columns).astype(np.int32)
        fixed = float((program.problem.epochs * program.problem.fixed_s).max())
        self.solver.addRow(fixed, self.inf, n + 1, index, np.append(1.0, -program.ranks))
        for k in range(1, n):
            pair = rank_columns[[k, k - 1]].astype(np.int32)
            self.solver.addRow(0.0, self.inf, 2, pair, np.array([1.0, -1.0]))

    @property
    def _missing(self) -> int:
        """The column of samples in the wrong place: expensive, so that rows can be kept at last."""
        return self.program.times + (self.program.problem.n if self._ranked else 0)

    def _add_missing(self, most: float) -> None:
        program, p = self.program, self.program.problem
        first = len(program.rows) * p.n + program.stock.size
        last = first + len(program.stored) + (2 * program.stock.size if program.mixed else 0)
        index = np.arange(first, last, dtype=np.int32)
        ports = (port_s[np.isfinite(port_s)].max(initial=0.0) for port_s in (p.send_s, p.receive_s))
        slowest = float(sum(ports)) + float(p.work_s.max())
        cost = DEAR * p.n * (slowest + float(p.price_s.max())) or 1.0
        top = min(most, self.inf)
        self.solver.addCol(cost, 0.0, top, len(index), index, np.full(len(index), -1.0))

    def add(self, moves: Moves) -> None:
        """More columns."""
        if len(moves) == 0:
            return
        index, value, start = columns(self.program, moves)
        p = self.program.problem
        upper = np.full(len(moves), self.inf)
        first = self.solver.getNumCol()
        self.solver.addCols(
            len(moves),
            p.price_s[moves.source, moves.target],
            np.zeros(len(moves)),
            upper,
            len(index),
            start.astype(np.int32),
            index.astype(np.int32),
            value,
        )
        if self.whole:
            which = np.arange(first, first + len(moves), dtype=np.int32)
            kind = np.full(len(moves), int(self.package.HighsVarType.kInteger), dtype=np.uint8)
            self.solver.changeColsIntegrality(len(moves), which, kind)
        self.moves = Moves(
            *(
                np.concatenate([getattr(self.moves, f), getattr(moves, f)])
                for f in ("source", "target", "sample_class")
            )
        )

    def solve(self, deadline_s: float) -> bool:
        """Run until optimal or the deadline; whether it is optimal."""
        left = deadline_s - time.perf_counter()
        return bool(self.runner.run(max(0.01, left)) == self.package.HighsModelStatus.kOptimal)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the last run."""
        return self.runner.interrupted

    @property
    def infeasible(self) -> bool:
        """Whether the columns at hand admit no answer."""
        return bool(self.solver.getModelStatus() == self.package.HighsModelStatus.kInfeasible)

    @property
    def has_answer(self) -> bool:
        """Whether there is anything to read off."""
        return bool(self.solver.getSolution().value_valid)

    @property
    def proved_s(self) -> float:
        """Whole moves: what branching proved."""
        bound = float(self.solver.getInfo().mip_dual_bound)
        if not np.isfinite(bound):
            return 0.0
        sure = bound - PROVED * abs(bound) - REDUCED * self._most_counted
        return max(sure, 0.0) + self.program.constant_s

    @property
    def _most_counted(self) -> float:
        """What moves and ranks can add up to, samples."""
        p, stock = self.program.problem, float(self.program.stock.sum())
        moved = stock * (p.n if p.relay else 1)
        return moved + (p.n * float(p.held.sum()) if self._ranked else 0.0)

    def start_from(self, flow: FloatArray) -> None:
        """Whole moves: begin at this plan; HiGHS finds the times that go with it."""
        index = np.arange(self.first_move, self.first_move + len(flow), dtype=np.int32)
        self.solver.setSolution(len(index), index, flow)

    @property
    def value_s(self) -> float:
        """The objective of the current answer."""
        return float(self.solver.getInfo().objective_function_value) + self.program.constant_s

    @property
    def missing(self) -> float:
        """Samples by which storage or label mix is missed."""
        return float(self.solver.getSolution().col_value[self._missing])

    def times(self) -> FloatArray:
        """The times whose sum is the objective; with `steps`, the training's comes last."""
        return np.array(self.solver.getSolution().col_value[: self.program.times])

    def steps(self) -> FloatArray:
        """Equal batches, shape (n,): samples that each node may hold."""
        start, n = self.program.times, self.program.problem.n
        ranked = np.array(self.solver.getSolution().col_value[start : start + n])
        by_node = np.empty(n)
        by_node[self.program.order] = ranked
        return by_node

    def flow(self) -> FloatArray:
        """Shape (moves,): samples per column."""
        values = np.array(self.solver.getSolution().col_value)
        flow: FloatArray = np.maximum(values[self.first_move :], 0.0)
        return flow

    def prices(self) -> Prices:
        """The multipliers of the current answer."""
        dual = np.array(self.solver.getSolution().row_dual)
        program, n = self.program, self.program.problem.n
        sizes = [n] * len(program.rows) + [program.stock.size, len(program.stored)]
        parts = np.split(dual, np.cumsum(sizes))
        shape = program.stock.shape
        none = np.zeros(shape)
        mix = parts[-1][: 2 * program.stock.size].reshape(2, *shape) if program.mixed else None
        positive = [np.maximum(part, 0.0) for part in parts[: len(program.rows)]]
        return Prices(
            rows=tuple(positive),
            stock=np.maximum(-parts[len(program.rows)], 0.0).reshape(shape),
            stored=np.maximum(-parts[len(program.rows) + 1], 0.0),
            mix_over=none if mix is None else np.maximum(-mix[0], 0.0),
            mix_under=none if mix is None else np.maximum(-mix[1], 0.0),
            ranked=float(parts[-1][2 * none.size * program.mixed]) if self._ranked else 0.0,
        )


def mix_sides(program: Program, slack: float) -> tuple[FloatArray, FloatArray]:
    """Right sides of ``held_c - (g + d) held <= side`` and ``(g - d) held - held_c <= side``.

    `slack` is what the mix may be missed by, in samples.
    """
    p = program.problem
    total = p.held[:, None]
    low, high = mix_range(program)
    return high * total - p.samples + slack, p.samples - low * total + slack


def mix_range(program: Program) -> tuple[FloatArray, FloatArray]:
    """Shape (k,): the smallest and the largest share of each class."""
    p = program.problem
    share = p.samples.sum(axis=0) / p.samples.sum()
    return share - p.label_mix, share + p.label_mix


def columns(program: Program, moves: Moves) -> tuple[IntArray, FloatArray, IntArray]:
    """Row indices, entries and starts of the columns, in HiGHS's column-wise form."""
    p = program.problem
    n, k = p.n, p.k
    i, j, c = moves.source, moves.target, moves.sample_class
    index, value, base = [], [], 0
    for rows in program.rows:
        index += [base + i, base + j]
        value += [
            rows.weight[i] - rows.out_weight * p.send_s[i, j],
            -rows.weight[j] - rows.in_weight * p.receive_s[i, j],
        ]
        base += n
    one = np.ones(len(moves))
    index += [base + i * k + c, base + j * k + c]
    # What arrives may leave again only with relays.
    value += [one, -one if p.relay else 0 * one]
    base += n * k
    # Row of a node among those with storage; -1 picks none, its entries are zeros and left out
    # below.
    room = np.full(n, -1)
    room[program.stored] = np.arange(len(program.stored))
    index += [base + room[i], base + room[j]]
    value += [np.where(room[i] >= 0, -one, 0), np.where(room[j] >= 0, one, 0)]
    base += len(program.stored)
    if program.mixed:
        low, high = mix_range(program)
        for d in range(k):
            same = (c == d).astype(np.float64)
            for side, share, sign in ((0, high, 1.0), (1, low, -1.0)):
                entry = sign * (same - share[d])
                index += [base + side * n * k + i * k + d, base + side * n * k + j * k + d]
                value += [-entry, entry]
    rows_, values = np.stack(index, axis=1), np.stack(value, axis=1)
    used = values != 0
    starts = np.concatenate([[0], np.cumsum(used.sum(axis=1))[:-1]])
    return rows_[used], values[used], starts
