"""The linear program whose columns every plan that counts gives values to.

T is the end, s[i] the start of operator i, x[g, d] whether group g is on device d, into[k, g, d]
whether group g takes in tensor k on device d from elsewhere. T is minimised under

    sum_d x[g, d] = 1,    into[k, g, d] >= x[g, d] - x[maker of k, d],
    sum_i w[i, d] x[i, d] <= T,    sum_g r[g] x[g, d] <= memory[d],
    s[j] >= s[i] + sum_d w[i, d] x[i, d] + sum_d (least way of k to d) into[k, j, d]

for every tensor k from i to j, T >= s[i] + sum_d w[i, d] x[i, d] at the end of the graph, and,
where transfers wait for each other, what comes into a device, and all that is sent, takes no longer
than T on each of the channels there. Channels of their own for every tensor made the program five
times as slow and the bound no higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.structure.ceft import ceft
from placewright.operators.structure.costs import linked
from placewright.operators.structure.groups import Groups, groups_of
from placewright.solvers.programs import LinearProgram


class Choices:
    """Which group may still be on which device. All times are in units of `scale_s`.

    Attributes
    ----------
    most
        Plans that are longer do not count.
    allowed
        Shape (groups, m).
    head, tail
        Shape (n,): an operator starts no earlier, and from its end it is no less to the end of all.
    """

    def __init__(self, problem: OperatorProblem, scale_s: float, most: float) -> None:
        self.problem, self.scale_s, self.most = problem, scale_s, most
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
            tables = ceft(p.replace(compute_s=np.where(allowed, p.compute_s, np.inf)))
            through = tables.through_s / self.scale_s
            long = np.zeros_like(self.allowed)
            np.logical_or.at(long, own, allowed & (through > self.most))
            new = self._forbid(long & self.allowed)
            if not new.any():
                work = np.where(allowed, p.compute_s, 0.0)
                self.head = self._least(tables.ceft_s - work, allowed)
                self.tail = self._least(tables.ceft_up_s - work, allowed)
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

    def _least(self, seconds: FloatArray, allowed: BoolArray) -> FloatArray:
        least: FloatArray = np.where(allowed, seconds, np.inf).min(axis=1) / self.scale_s
        return np.where(np.isfinite(least), np.maximum(0.0, least), 0.0)


END = 0
"""Column of T."""

WHOLE = 1000.0
"""The bound that is known, in the program's unit: solvers know absolute tolerances only."""

LONGEST = 1e12
"""Times that are longer count as this: HiGHS takes no factors beyond 1e15."""

NOTHING = 1e-4
"""Transfers that take less are left out."""

Terms = tuple[IntArray | int, FloatArray | float]
"""Columns and their factors, in one shape or to be broadcast."""


class Program:
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
        arrivals = [self._arrivals(k) for k in range(self.problem.t)]
        if self.problem.links is Links.CONTENDED:
            self._channels(arrivals)
        self._paths(arrivals)

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

    def _arrivals(self, k: int) -> _Arrivals:
        """Columns of into[k, g, d], no less than x[g, d] - x[maker of k, d]."""
        p, own, linear = self.problem, self.groups.group, self.linear
        maker = int(own[p.tensor_producer[k]])
        others = np.setdiff1d(own[p.readers(k)], [maker])
        # From the best source that is left, whichever the maker has in fractions: a lower bound.
        way = self._least_transfer_s(k, maker) if len(others) else np.zeros(p.m)
        where = (way > NOTHING) & (self.of_group[others] >= 0)
        # Where nothing leads there, the reader is on `d` no more than the maker is.
        high = np.where(np.isfinite(way), 1.0, 0.0)
        into = linear.columns(where.shape, high=high, where=where)
        rows = linear.rows(where.shape, low=0.0, where=where)
        linear.enter(rows, into, 1.0)
        linear.enter(rows, self.of_group[others], -1.0)
        linear.enter(rows, self.of_group[maker], 1.0)
        return _Arrivals(others, into, np.where(np.isfinite(way), np.minimum(way, LONGEST), 0.0))

    def _least_transfer_s(self, k: int, maker: int) -> FloatArray:
        """Shape (m,): the least time of tensor k to each device from another one."""
        p = self.problem
        seconds = p.latency_s + p.tensor_bytes[k] * p.seconds_per_byte
        seconds = np.where(linked(p), seconds, np.inf)
        least: FloatArray = seconds[self.of_group[maker] >= 0].min(axis=0, initial=np.inf)
        return least / self.scale_s

    def _channels(self, arrivals: Sequence[_Arrivals]) -> None:
        """Rows: transfers into a device, and all transfers, fit the channels that they have."""
        p, pair, linear = self.problem, linked(self.problem), self.linear
        # Each transfer holds one channel, and each channel has T: together so many times T.
        channels = [len(np.unique(p.channel[pair[:, d], d])) for d in range(p.m)]
        into, all_of_them = linear.rows(p.m, high=0.0), linear.rows(high=0.0)
        linear.enter(into, END, -np.array(channels, dtype=np.float64))
        linear.enter(all_of_them, END, -float(len(np.unique(p.channel[pair]))))
        for arrival in arrivals:
            sent = self._any(np.where(arrival.way > 0, arrival.into, -1))
            linear.enter(into, sent, arrival.way)
            linear.enter(all_of_them, sent, arrival.way)

    def _any(self, columns: IntArray) -> IntArray:
        """A column no less than each of these, device by device: itself where there is one."""
        some = self.linear.columns(columns.shape[1], high=1.0, where=(columns >= 0).sum(axis=0) > 1)
        rows = self.linear.rows(columns.shape, low=0.0, where=(columns >= 0) & (some >= 0))
        self.linear.enter(rows, some, 1.0)
        self.linear.enter(rows, columns, -1.0)
        return np.where(some >= 0, some, columns.max(axis=0, initial=-1))

    def _paths(self, arrivals: Sequence[_Arrivals]) -> None:
        """Readers start after their producers and what is sent, and all end before T."""
        p, own, linear = self.problem, self.groups.group, self.linear
        last = np.ones(p.n, dtype=np.bool_)
        for k, (others, into, way) in enumerate(arrivals):
            i, readers = int(p.tensor_producer[k]), p.readers(k)
            last[i] &= not len(readers)
            rows = linear.rows(len(readers), low=0.0)
            linear.enter(rows, self.start[readers], 1.0)
            linear.enter(rows, int(self.start[i]), -1.0)
            linear.enter(rows[:, None], self.place[i], -self.work[i])
            for g, columns in zip(others.tolist(), into, strict=True):
                linear.enter(rows[own[readers] == g, None], columns, -way)
        end = linear.rows(p.n, low=0.0, where=last)
        linear.enter(end, END, 1.0)
        linear.enter(end, self.start, -1.0)
        linear.enter(end[:, None], self.place, -self.work)


class _Arrivals(NamedTuple):
    """Columns into[k, g, d] of a tensor for `others`, the groups that read it elsewhere.

    `way`: shape (m,), the least time to each device, 0 where nothing leads there.
    """

    others: IntArray
    into: IntArray
    way: FloatArray
