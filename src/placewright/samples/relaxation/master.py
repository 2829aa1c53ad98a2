"""A `Program` with some of its columns in HiGHS; more columns can be added and it goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.relaxation.program import Moves, Program
from placewright.solvers.programs import LinearProgram, Solution

PROVED = 1e-6
"""Taken off what branching proves: HiGHS's relative tolerances."""

REDUCED = 1e-7
"""HiGHS's tolerance of a reduced cost: taken off for every sample that may move."""

LEAST_S = 0.01
"""A master is given so long even where the deadline is over."""

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

    Columns: the times, then (equal batches) the steps of each rank, then samples in the wrong
    place, then the moves. Where they are whole, Ctrl-C ends a solve with what was found, and
    `interrupted` says so.

    `gap`: whole moves: relative distance of value and bound at which branching ends.
    `slack`: samples by which a label mix may be missed; without it `WHOLE_SLACK`, or `SLACK`.
    `most_missing`: samples by which storage and label mix may be missed at most, at a price.
    """

    def __init__(
        self,
        program: Program,
        *,
        whole: bool = False,
        gap: float = 0.0,
        slack: float | None = None,
        most_missing: float = math.inf,
    ) -> None:
        self.program, self.whole = program, whole
        self.linear, self.answer = LinearProgram(stoppable=whole, gap=gap), Solution()
        self.moves = Moves(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
        ranks = program.problem.n if self._ranked else 0
        self._times = self.linear.columns(program.times, cost=1.0)
        self._steps = self.linear.columns(ranks)
        self._flow = np.zeros(0, np.int64)
        self._add_rows((WHOLE_SLACK if whole else SLACK) if slack is None else slack)
        self._add_ranks()
        self._add_missing(most_missing)
        self.linear.load()  # so that HiGHS gets all moves in the same way, column by column

    @property
    def _ranked(self) -> bool:
        return any(rows.ranked for rows in self.program.rows)

    def _add_rows(self, slack: float) -> None:
        """Time rows, stock, storage, mix; in this order."""
        program, linear = self.program, self.linear
        problem, n = program.problem, program.problem.n
        self._timed: list[IntArray] = []
        for rows in program.rows:
            # time - (what the moves change) >= what the node takes without them; moves come later.
            self._timed.append(linear.rows(n, low=rows.weight * problem.held + rows.fixed))
            own = self._steps[np.argsort(program.order)] if rows.ranked else self._times[rows.time]
            linear.enter(self._timed[-1], own, 1.0)
        self._stock = linear.rows(program.stock.shape, high=program.stock)
        free = np.floor(problem.storage) - problem.held
        self._stored = linear.rows(len(program.stored), high=free[program.stored])
        sides = mix_sides(program, slack) if program.mixed else ()
        self._mix = [linear.rows(side.shape, high=side) for side in sides]

    def _add_ranks(self) -> None:
        """Training takes what its steps cost; a rank's steps are at least those before it."""
        if not self._ranked:
            return
        program, linear = self.program, self.linear
        # The slowest node's steps at its cost, and each faster one's further steps at what they
        # add.
        time = next(rows.time for rows in program.rows if rows.ranked)
        fixed = float((program.problem.epochs * program.problem.fixed_s).max())
        self._trained = linear.rows(low=fixed)
        linear.enter(self._trained, self._times[time], 1.0)
        linear.enter(self._trained, self._steps, -program.ranks)
        rising = linear.rows(program.problem.n - 1, low=0.0)
        linear.enter(rising, self._steps[1:], 1.0)
        linear.enter(rising, self._steps[:-1], -1.0)

    def _add_missing(self, most: float) -> None:
        """A column of samples in the wrong place: expensive, so that rows can be kept at last."""
        p = self.program.problem
        ports = (port_s[np.isfinite(port_s)].max(initial=0.0) for port_s in (p.send_s, p.receive_s))
        slowest = float(sum(ports)) + float(p.work_s.max())
        cost = DEAR * p.n * (slowest + float(p.price_s.max())) or 1.0
        self._missing = self.linear.columns(high=most, cost=cost)
        for rows in (self._stored, *self._mix):
            self.linear.enter(rows, self._missing, -1.0)

    def add(self, moves: Moves) -> None:
        """More columns."""
        if len(moves) == 0:
            return
        program, enter = self.program, self.linear.enter
        p, i, j, c = program.problem, moves.source, moves.target, moves.sample_class
        flow = self.linear.columns(len(moves), cost=p.price_s[i, j], whole=self.whole)
        for rows, at in zip(program.rows, self._timed, strict=True):
            enter(at[i], flow, rows.weight[i] - rows.out_weight * p.send_s[i, j])
            enter(at[j], flow, -rows.weight[j] - rows.in_weight * p.receive_s[i, j])
        enter(self._stock[i, c], flow, 1.0)
        if p.relay:  # what arrives may leave again
            enter(self._stock[j, c], flow, -1.0)
        room = np.full(p.n, -1)
        room[program.stored] = self._stored
        enter(room[i], flow, -1.0)
        enter(room[j], flow, 1.0)
        low, high = mix_range(program)
        for d in range(p.k):
            for side, share, sign in zip(self._mix, (high, low), (1.0, -1.0), strict=False):
                entry = sign * ((c == d) - share[d])
                enter(side[i, d], flow, -entry)
                enter(side[j, d], flow, entry)
        self._flow = np.append(self._flow, flow)
        self.moves = Moves(
            *(
                np.concatenate([getattr(self.moves, f), getattr(moves, f)])
                for f in ("source", "target", "sample_class")
            )
        )

    def solve(self, deadline_s: float) -> bool:
        """Run until optimal or the deadline; whether it is optimal."""
        self.answer = self.linear.solve(deadline_s, LEAST_S)
        return self.answer.proved

    def start_from(self, flow: FloatArray) -> None:
        """Whole moves: begin at this plan; HiGHS finds the times that go with it."""
        self.linear.start(self._flow, flow)

    @property
    def proved_s(self) -> float:
        """Whole moves: what branching proved."""
        bound = self.answer.bound
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

    @property
    def value_s(self) -> float:
        """The objective of the current answer."""
        return self.answer.value + self.program.constant_s

    @property
    def missing(self) -> float:
        """Samples by which storage or label mix is missed."""
        return float(self._values[self._missing])

    def times(self) -> FloatArray:
        """The times whose sum is the objective; with `steps`, the training's comes last."""
        return self._values[self._times]

    def steps(self) -> FloatArray:
        """Equal batches, shape (n,): samples that each node may hold."""
        by_node = np.empty(self.program.problem.n)
        by_node[self.program.order] = self._values[self._steps]
        return by_node

    def flow(self) -> FloatArray:
        """Shape (moves,): samples per column."""
        return np.maximum(self._values[self._flow], 0.0)

    @property
    def _values(self) -> FloatArray:
        found = self.answer.values  # without an answer nothing moves
        return np.zeros(self.linear.size.columns) if found is None else found

    def prices(self) -> Prices:
        """The multipliers of the current answer."""
        dual, none = self.answer.multipliers, np.zeros(self.program.stock.shape)
        assert dual is not None, "there is no answer to read"
        over, under = [np.maximum(-dual[rows], 0.0) for rows in self._mix] or (none, none)
        return Prices(
            rows=tuple(np.maximum(dual[rows], 0.0) for rows in self._timed),
            stock=np.maximum(-dual[self._stock], 0.0),
            stored=np.maximum(-dual[self._stored], 0.0),
            mix_over=over,
            mix_under=under,
            ranked=float(dual[self._trained]) if self._ranked else 0.0,
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
