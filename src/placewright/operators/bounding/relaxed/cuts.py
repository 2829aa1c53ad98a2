"""Rows that every plan keeps and the relaxed schedule breaks: loads between two times.

For operators p and q, D(p) what follows p, and any device d:

    (end of p) + load of D(p) on d <= T,        load of what is before q on d <= (start of q),
    (end of p) + load of what is between p and q on d <= (start of q),

and, with the heads and tails of `placewright.operators.bounds`, for any a and b

    a + load on d of operators with a head >= a and a tail >= b + b <= T.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.bounding.head_load_tail import windows_of
from placewright.operators.bounding.relaxed.program import END, WHOLE, Program, Terms
from placewright.operators.problem import OperatorProblem

BROKEN = 1e-4 * WHOLE
"""By how much a row must be broken to be added."""

AT_ONCE = 10
"""Rows of a kind that are added in one round."""

BETWEEN = 20
"""Operators p whose pairs with all q are looked at, in one round; the next ones in the next."""

WIDEST = 100
"""Those that ever are, where there are so many."""

STEPS = 200
"""Heads and tails that are tried."""


def followers(problem: OperatorProblem) -> BoolArray:
    """Shape (n, n): whether operator j follows operator i."""
    follows = np.zeros((problem.n, problem.n), dtype=np.bool_)
    topology = problem.topology
    for i in topology.order[::-1].tolist():
        for j in {j for k in topology.made_by(i) for j in problem.readers(k).tolist()}:
            follows[i] |= follows[j]
            follows[i, j] = True
    return follows


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Looks for broken rows.

    Attributes
    ----------
    follows
        Shape (n, n).
    counted
        The same as numbers.
    widest
        Operators with the most operators on their ways, the most first.
    """

    program: Program
    follows: BoolArray
    counted: FloatArray
    widest: IntArray

    def begin(self, head: FloatArray, tail: FloatArray) -> None:
        """The rows that bind where work is spread by speed, before anything is solved."""
        p = self.program
        total = p.work.sum(axis=0)
        speed = np.where(p.place >= 0, 1.0 / np.where(total > 0, total, 1.0), 0.0)
        share = speed / speed.sum(axis=1, keepdims=True)
        self._head_load_tail(share * p.work, 0.0, head, tail)

    def add(self, turn: int, values: FloatArray, head: FloatArray, tail: FloatArray) -> int:
        """Add rows that the solution breaks; how many.

        Parameters
        ----------
        turn
            Number of the round.
        values
            Of the columns.
        head, tail
            Shape (n,), in the program's unit: each operator starts no earlier, and it is no less
            from its end to the end of all.
        """
        p = self.program
        load = np.where(p.place >= 0, values[p.place], 0.0) * p.work
        start = values[p.start]
        end = start + load.sum(axis=1)
        before = p.linear.size.rows
        self._head_load_tail(load, values[END], head, tail)
        self._outside(load, values[END], start, end)
        self._between(turn, load, start, end)
        return p.linear.size.rows - before

    def _head_load_tail(
        self, load: FloatArray, whole: float, head: FloatArray, tail: FloatArray
    ) -> None:
        windows = windows_of(head, tail, STEPS)
        for d in range(load.shape[1]):
            needed = windows.needed(load[:, d])
            a, b = (int(x) for x in np.unravel_index(int(needed.argmax()), needed.shape))
            if needed[a, b] - whole > BROKEN:
                load_of = self.program.load(windows.inside(a, b), d)
                self.program.at_most(-float(windows.around[a, b]), load_of, (END, -1.0))

    def _outside(self, load: FloatArray, whole: float, start: FloatArray, end: FloatArray) -> None:
        p, follows = self.program, self.follows
        over = end[:, None] + self.counted @ load - whole
        for i, d in _worst(over):
            self._row(follows[i], d, *self._end_of(i), (END, -1.0))
        over = self.counted.T @ load - start[:, None]
        for j, d in _worst(over):
            self._row(follows[:, j], d, (int(p.start[j]), -1.0))

    def _between(self, turn: int, load: FloatArray, start: FloatArray, end: FloatArray) -> None:
        p, follows = self.program, self.follows
        for i in np.roll(self.widest, -turn * BETWEEN)[:BETWEEN].tolist():
            inside = self.counted.T @ (follows[i][:, None] * load)
            # Only for q that follow p; others have no row.
            over = np.where(follows[i][:, None], inside - (start - end[i])[:, None], 0.0)
            for j, d in _worst(over, 1):
                some = follows[i] & follows[:, j]
                self._row(some, d, *self._end_of(i), (int(p.start[j]), -1.0))

    def _end_of(self, i: int) -> tuple[Terms, Terms]:
        return (int(self.program.start[i]), 1.0), self.program.duration(i)

    def _row(self, some: BoolArray, d: int, *others: Terms) -> None:
        """What `some` put on a device, and the others, add up to 0 at most."""
        self.program.at_most(0.0, self.program.load(np.flatnonzero(some), d), *others)


def cuts_of(program: Program) -> Cuts:
    """For a program of at most some thousand operators."""
    follows = followers(program.problem)
    ways = follows.sum(axis=1).astype(np.float64) * follows.sum(axis=0)
    widest = np.argsort(-ways, kind="stable")[:WIDEST]
    return Cuts(program, follows, follows.astype(np.float64), widest)


def _worst(over: FloatArray, count: int = AT_ONCE) -> list[tuple[int, int]]:
    """The places of the most broken rows."""
    flat = np.argsort(-over, axis=None, kind="stable")[:count]
    places = np.stack(np.unravel_index(flat, over.shape), axis=1).tolist()
    return [(i, d) for i, d in places if over[i, d] > BROKEN]
