"""A schedule relaxed to a linear program: solve, forbid, cut, and again; then branch.

What HiGHS says of a linear program is not taken at its word: the bound is what its multipliers
prove (`placewright.solvers.programs.LinearProgram.proved`). What it proves by branching, with whole
x, is lowered by a thousand times its tolerance.

*The program* has columns that every plan that counts gives values to.
T is the end, s[i] the start of operator i, x[g, d] whether group g is on device d, into[k, g, d]
whether group g takes in tensor k on device d from elsewhere. T is minimised under

    sum_d x[g, d] = 1,    into[k, g, d] >= x[g, d] - x[maker of k, d],
    sum_i w[i, d] x[i, d] <= T,    sum_g r[g] x[g, d] <= memory[d],
    s[j] >= s[i] + sum_d w[i, d] x[i, d] + sum_d (least way of k to d) into[k, j, d]

for every tensor k from i to j, s[v] >= s[u] + sum_d w[u, d] x[u, d] + (what is between them) for
every segment of `placewright.operators.segments`, T >= s[i] + sum_d w[i, d] x[i, d] at the end of
the graph, and, where transfers wait for each other, what comes into a device, and all that is sent,
takes no longer than T on each of the channels there. Channels of their own for every tensor made
the program five times as slow and the bound no higher.

*Cuts* are rows that every plan keeps and the relaxed schedule breaks: loads between two times.
For operators p and q, D(p) what follows p, and any device d:

    (end of p) + load of D(p) on d <= T,        load of what is before q on d <= (start of q),
    (end of p) + load of what is between p and q on d <= (start of q),

and, with the heads and tails of `placewright.operators.bounds`, for any a and b

    a + load on d of operators with a head >= a and a tail >= b + b <= T.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.costs import (
    Groups,
    ceft,
    groups_of,
    heads_and_tails,
    least_transfer_s,
    linked,
)
from placewright.operators.load_bounds import windows_of
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.segments import Segments
from placewright.planning.contract import BoundContext
from placewright.solvers.programs import LinearProgram, Solution

END = 0
"""Column of T."""

WHOLE = 1000.0
"""The bound that is known, in the program's unit: solvers know absolute tolerances only."""

LONGEST = 1e12
"""Times that are longer count as this: HiGHS takes no factors beyond 1e15."""

LOWERED = 1e-9
"""Share that is taken off bounds between operators, against rounding."""

NOTHING = 1e-4
"""Transfers that take less are left out."""

Terms = tuple[IntArray | int, FloatArray | float]
"""Columns and their factors, in one shape or to be broadcast."""


class RelaxedProgram:
    """The program in HiGHS; rows can be added.

    Attributes
    ----------
    work
        Shape (n, m), what each operator adds to a device's load; 0 where it may not be.
    of_group
        Shape (groups, m), the column of x, -1 where a group may not be.
    place
        Shape (n, m), that of the operator's group.
    start
        Shape (n,), the columns of s.
    """

    def __init__(self, choices: Choices) -> None:
        self.problem: OperatorProblem = choices.problem
        self.groups, self.scale_s = choices.groups, choices.scale_s
        self.linear = linear = LinearProgram(solver="ipm")
        linear.columns(high=choices.most, cost=1.0)  # T
        shape = choices.allowed.shape
        self.of_group = linear.columns(shape, high=1.0, where=choices.allowed)
        self.place: IntArray = self.of_group[self.groups.group]
        self.start = linear.columns(self.problem.n, high=choices.most)
        allowed = self.place >= 0
        work = np.where(allowed, self.problem.compute_s, 0.0) / self.scale_s
        self.work: FloatArray = np.minimum(work, LONGEST)
        linear.enter(linear.rows(shape[0], 1.0, 1.0)[:, None], self.of_group, 1.0)
        self._loads()
        arrivals = self._arrivals()
        if self.problem.links is Links.CONTENDED:
            self._channels(arrivals)
        self._paths(arrivals)
        self._segments(choices.segments)

    def at_most(self, high: float, *terms: Terms) -> None:
        """One more row: these terms add up to no more."""
        row = self.linear.rows(high=high)
        for columns, values in terms:
            self.linear.enter(row, columns, values)

    def duration(self, i: int) -> Terms:
        """Terms of the duration of operator i."""
        return self.place[i], self.work[i]

    def load(self, operators: IntArray, device: int) -> Terms:
        """Terms of the load that these operators put on a device."""
        return self.place[operators, device], self.work[operators, device]

    def _loads(self) -> None:
        p, linear = self.problem, self.linear
        load = linear.rows(p.m, high=0.0)
        linear.enter(load, self.place, self.work)
        linear.enter(load, END, -1.0)
        limited = np.isfinite(p.memory_bytes) & (p.memory_bytes > 0)
        share = self.groups.resident_bytes[:, None] / np.where(limited, p.memory_bytes, 1.0)
        linear.enter(linear.rows(p.m, high=1.0, where=limited), self.of_group, share)

    def _arrivals(self) -> _Arrivals:
        """Columns of into[k, g, d], no less than x[g, d] - x[maker of k, d]."""
        p, own, linear = self.problem, self.groups.group, self.linear
        tensor = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
        maker, reader = own[p.tensor_producer], own[p.consumers]
        pairs, of_edge = np.unique(np.stack([tensor, reader], axis=1), axis=0, return_inverse=True)
        elsewhere = pairs[:, 1] != maker[pairs[:, 0]]
        of_edge = np.where(elsewhere, np.cumsum(elsewhere) - 1, -1)[of_edge.ravel()]
        k, g = pairs[elsewhere].T
        least = least_transfer_s(p, self.of_group[maker] >= 0) / self.scale_s
        way, theirs = least[k], self.of_group[g]
        where = (way > NOTHING) & (theirs >= 0)
        # Where nothing leads there, the reader is on `d` no more than the maker is.
        into = linear.columns(where.shape, high=np.where(np.isfinite(way), 1.0, 0.0), where=where)
        rows = linear.rows(where.shape, low=0.0, where=where)
        linear.enter(rows, into, 1.0)
        linear.enter(rows, theirs, -1.0)
        linear.enter(rows, self.of_group[maker[k]], 1.0)
        bounded = np.where(np.isfinite(least), np.minimum(least, LONGEST), 0.0)
        return _Arrivals(k, into, bounded, tensor, of_edge)

    def _channels(self, arrivals: _Arrivals) -> None:
        """Rows: transfers into a device, and all transfers, fit the channels that they have."""
        p, pair, linear = self.problem, linked(self.problem), self.linear
        # Each transfer holds one channel, and each channel has T: together so many times T.
        channels = [len(np.unique(p.channel[pair[:, d], d])) for d in range(p.m)]
        into, all_of_them = linear.rows(p.m, high=0.0), linear.rows(high=0.0)
        linear.enter(into, END, -np.array(channels, dtype=np.float64))
        linear.enter(all_of_them, END, -float(len(np.unique(p.channel[pair]))))
        sent = self._sent(arrivals)
        linear.enter(into, sent, arrivals.way)
        linear.enter(all_of_them, sent, arrivals.way)

    def _sent(self, arrivals: _Arrivals) -> IntArray:
        """Columns no less than those of all groups that take a tensor in, shape (t, m)."""
        tensor, linear = arrivals.tensor, self.linear
        into = np.where(arrivals.way[tensor] > 0, arrivals.into, -1)
        count, only = np.zeros(arrivals.way.shape, dtype=np.int64), np.full(arrivals.way.shape, -1)
        np.add.at(count, tensor, into >= 0)
        np.maximum.at(only, tensor, into)
        some = linear.columns(count.shape, high=1.0, where=count > 1)
        rows = linear.rows(into.shape, low=0.0, where=(into >= 0) & (some[tensor] >= 0))
        linear.enter(rows, some[tensor], 1.0)
        linear.enter(rows, into, -1.0)
        return np.where(some >= 0, some, only)

    def _paths(self, arrivals: _Arrivals) -> None:
        """Readers start after their producers and what is sent, and all end before T."""
        p, linear = self.problem, self.linear
        k, producer = arrivals.of_edge, p.tensor_producer[arrivals.of_edge]
        rows = linear.rows(len(k), low=0.0)
        linear.enter(rows, self.start[p.consumers], 1.0)
        linear.enter(rows, self.start[producer], -1.0)
        linear.enter(rows[:, None], self.place[producer], -self.work[producer])
        sent = np.flatnonzero(arrivals.arrival >= 0)
        into = arrivals.into[arrivals.arrival[sent]]
        linear.enter(rows[sent, None], into, -arrivals.way[k[sent]])
        last = np.ones(p.n, dtype=np.bool_)
        last[producer] = False
        end = linear.rows(p.n, low=0.0, where=last)
        linear.enter(end, END, 1.0)
        linear.enter(end, self.start, -1.0)
        linear.enter(end[:, None], self.place, -self.work)

    def _segments(self, segments: Segments) -> None:
        """Operators start so long after the end of another one as what is between them takes."""
        v = np.flatnonzero(segments.start >= 0)
        u, between = segments.start[v], segments.between_s[v] * (1.0 - LOWERED) / self.scale_s
        rows = self.linear.rows(len(v), low=np.minimum(between, LONGEST))
        self.linear.enter(rows, self.start[v], 1.0)
        self.linear.enter(rows, self.start[u], -1.0)
        self.linear.enter(rows[:, None], self.place[u], -self.work[u])


class _Arrivals(NamedTuple):
    """Columns into[k, g, d] of all tensors k and groups g that read them elsewhere.

    Attributes
    ----------
    tensor
        Shape (arrivals,), k.
    into
        Shape (arrivals, m).
    way
        Shape (t, m), the least time to each device, 0 where nothing leads there.
    of_edge
        Shape (edges,), the tensor that the reader of an edge reads.
    arrival
        Shape (edges,), the row of `into`, -1 where the reader's group is the maker's.
    """

    tensor: IntArray
    into: IntArray
    way: FloatArray
    of_edge: IntArray
    arrival: IntArray


MARGIN = 1e-6
"""Share of the whole that is taken off the bounds of branching."""

OVERRUN = 2.0
"""HiGHS may branch so many times as long as its limit, where it is at the root for long."""

LEAST_S = 0.1
"""HiGHS is given so long even where the deadline is over."""


class Solver:
    """The program, solved again and again; rows that are new since are added before."""

    def __init__(self, program: RelaxedProgram) -> None:
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
    problem: OperatorProblem, segments: Segments, follows: BoolArray, known: BoundContext
) -> Iterator[float]:
    """Ever higher lower bounds on the latency of any plan, seconds.

    Raises `KeyboardInterrupt`: after the last bound that was proved.

    Parameters
    ----------
    follows
        Of `followers`.
    known
        A lower bound, above zero; the value of a plan that fits, which none that is returned
        exceeds; and when it ends with what it has.
    """
    deadline_s, value_s = known.deadline_s, known.value
    begun, unit_s = time.perf_counter(), known.bound / WHOLE
    choices = Choices(problem, unit_s, value_s / unit_s * (1.0 + ROOM), segments)
    solver, best = Solver(RelaxedProgram(choices)), 0.0
    cuts = cuts_of(solver.program, follows)
    for best in _cut(solver, choices, cuts, begun + CUT_SHARE * (deadline_s - begun)):
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


def _cut(solver: Solver, choices: Choices, cuts: Cuts, deadline_s: float) -> Iterator[float]:
    """Rounds of solving, forbidding and cutting; the best bound after each."""
    best, idle, turn = 0.0, 0, 0
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

    program: RelaxedProgram
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


def cuts_of(program: RelaxedProgram, follows: BoolArray) -> Cuts:
    """For a program of at most some thousand operators."""
    ways = follows.sum(axis=1).astype(np.float64) * follows.sum(axis=0)
    widest = np.argsort(-ways, kind="stable")[:WIDEST]
    return Cuts(program, follows, follows.astype(np.float64), widest)


def _worst(over: FloatArray, count: int = AT_ONCE) -> list[tuple[int, int]]:
    """The places of the most broken rows."""
    flat = np.argsort(-over, axis=None, kind="stable")[:count]
    places = np.stack(np.unravel_index(flat, over.shape), axis=1).tolist()
    return [(i, d) for i, d in places if over[i, d] > BROKEN]


class Choices:
    """Which group may still be on which device. All times are in units of `scale_s`.

    Attributes
    ----------
    most
        Plans that are longer do not count.
    allowed
        Shape (groups, m).
    segments
        Of the problem.
    head, tail
        Shape (n,): an operator starts no earlier, and from its end it is no less to the end of all.
    """

    def __init__(
        self, problem: OperatorProblem, scale_s: float, most: float, segments: Segments
    ) -> None:
        self.problem, self.scale_s, self.most, self.segments = problem, scale_s, most, segments
        self.groups: Groups = groups_of(problem)
        self.allowed: BoolArray = self.groups.allowed.copy()
        self.head = self.tail = np.zeros(problem.n)
        self.by_path()

    def by_price(self, value: float, price: FloatArray) -> BoolArray:
        """Forbid what makes the bound too high; all that is newly forbidden, shape (groups, m).

        `value`: a bound on the end.
        `price`: Shape (groups, m): how much higher it is with the group on the device.
        """
        return self._forbid(self.allowed & (value + price > self.most))

    def by_path(self) -> BoolArray:
        """Forbid what makes a path too long, wherever all others are; recompute heads and tails."""
        p, own = self.problem, self.groups.group
        found = np.zeros_like(self.allowed)
        while True:
            allowed = self.allowed[own]
            narrowed = p.replace(compute_s=np.where(allowed, p.compute_s, np.inf))
            tables = ceft(narrowed)
            through = tables.through_s / self.scale_s
            long = np.zeros_like(self.allowed)
            np.logical_or.at(long, own, allowed & (through > self.most))
            new = self._forbid(long & self.allowed)
            if not new.any():
                head, tail = heads_and_tails(narrowed, tables)
                self.head = self._least(head, self.segments.head_s)
                self.tail = self._least(tail, self.segments.tail_s)
                return found
            found |= new

    def _forbid(self, wrong: BoolArray) -> BoolArray:
        """All but what would leave a group without a device."""
        # Where all devices of a group are wrong no plan is below `most`; the program must stay
        # feasible.
        somewhere = np.any(self.allowed & ~wrong, axis=1)
        found: BoolArray = wrong & np.reshape(somewhere, (-1, 1))
        self.allowed &= ~found
        return found

    def _least(self, seconds: FloatArray, known: FloatArray) -> FloatArray:
        """The later of both in the program's unit; what is infinite is never, and binds nothing."""
        least: FloatArray = np.where(np.isfinite(seconds), seconds, 0.0)
        return np.maximum(least, known * (1.0 - LOWERED)) / self.scale_s
