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

from collections.abc import Iterable

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.structure.ceft import ceft
from placewright.operators.structure.costs import linked
from placewright.operators.structure.groups import Groups, groups_of


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

NOTHING = 1e-4
"""Transfers that take less are left out."""

Terms = list[tuple[int, float]]


class Program:
    """Columns and rows ``lower <= A z <= upper``; rows can be added.

    Attributes
    ----------
    top
        The most that each column can be; the least is 0.
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
        self.top: list[float] = [choices.most]
        self.columns: list[IntArray] = []
        self.values: list[FloatArray] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.of_group = self._choices(choices)
        self.place: IntArray = self.of_group[self.groups.group]
        allowed = self.place >= 0
        self.work: FloatArray = np.where(allowed, self.problem.compute_s, 0.0) / self.scale_s
        self.start: IntArray = np.array([self._column(choices.most) for _ in range(self.problem.n)])
        self._loads()
        self._paths(self._transfers())

    def row(self, terms: Iterable[tuple[int, float]], lower: float, upper: float) -> None:
        """One more row; terms of one column are added up."""
        total: dict[int, float] = {}
        for column, value in terms:
            total[column] = total.get(column, 0.0) + value
        self.columns.append(np.fromiter(total, np.int64, len(total)))
        self.values.append(np.fromiter(total.values(), np.float64, len(total)))
        self.lower.append(lower)
        self.upper.append(upper)

    def duration(self, i: int, sign: float = 1.0) -> Terms:
        """Terms of the duration of operator i."""
        devices = np.flatnonzero(self.place[i] >= 0).tolist()
        return [(int(self.place[i, d]), sign * float(self.work[i, d])) for d in devices]

    def load(self, operators: IntArray, device: int) -> Terms:
        """Terms of the load that these operators put on a device."""
        there = (self.place[operators, device] >= 0) & (self.work[operators, device] > 0)
        chosen = operators[there]
        columns, works = self.place[chosen, device], self.work[chosen, device]
        return list(zip(columns.tolist(), works.tolist(), strict=True))

    def _column(self, top: float) -> int:
        self.top.append(top)
        return len(self.top) - 1

    def _choices(self, choices: Choices) -> IntArray:
        """x, and a device for every group."""
        place = np.full(choices.allowed.shape, -1)
        for g, row in enumerate(choices.allowed):
            for d in np.flatnonzero(row).tolist():
                place[g, d] = self._column(1.0)
            self.row([(int(c), 1.0) for c in place[g] if c >= 0], 1.0, 1.0)
        return place

    def _loads(self) -> None:
        p, everything = self.problem, np.arange(self.problem.n)
        for d in range(p.m):
            self.row([*self.load(everything, d), (END, -1.0)], -np.inf, 0.0)
            if np.isfinite(p.memory_bytes[d]) and p.memory_bytes[d] > 0:
                held = np.flatnonzero((self.groups.resident_bytes > 0) & (self.of_group[:, d] >= 0))
                share = self.groups.resident_bytes[held] / p.memory_bytes[d]
                columns = self.of_group[held, d].tolist()
                self.row(zip(columns, share.tolist(), strict=True), -np.inf, 1.0)

    def _transfers(self) -> dict[tuple[int, int, int], tuple[int, float]]:
        """Columns of into[k, g, d] and the least ways; rows for channels."""
        p, own = self.problem, self.groups.group
        into: dict[tuple[int, int, int], tuple[int, float]] = {}
        sent: list[Terms] = [[] for _ in range(p.m)]
        for k in range(p.t):
            maker = int(own[p.tensor_producer[k]])
            readers = p.readers(k).tolist()
            others = sorted({int(own[j]) for j in readers} - {maker})
            # From the best source that is left, whichever the maker has in fractions: a lower
            # bound.
            ways = self._least_transfer_s(k, maker) if others else np.zeros(p.m)
            for d in np.flatnonzero(ways > NOTHING).tolist():
                way = float(ways[d])
                came = [self._into(maker, g, d, way) for g in others]
                found = [(g, c) for g, c in zip(others, came, strict=True) if c >= 0]
                into.update({(k, g, d): (c, way) for g, c in found})
                if found and np.isfinite(way):
                    sent[d].append((self._any([c for _, c in found]), way))
        if p.links is Links.CONTENDED:
            self._channels(sent)
        return into

    def _least_transfer_s(self, k: int, maker: int) -> FloatArray:
        """Shape (m,): the least time of tensor k to each device from another one."""
        p = self.problem
        seconds = p.latency_s + p.tensor_bytes[k] * p.seconds_per_byte
        seconds = np.where(linked(p), seconds, np.inf)
        least: FloatArray = seconds[self.of_group[maker] >= 0].min(axis=0, initial=np.inf)
        return least / self.scale_s

    def _into(self, maker: int, g: int, d: int, way: float) -> int:
        """Whether g takes something in on d; -1 where it cannot be there."""
        here, source = int(self.of_group[g, d]), int(self.of_group[maker, d])
        if here < 0:
            return -1
        # Nothing leads there: the reader is on `d` no more than the maker is.
        column = self._column(1.0 if np.isfinite(way) else 0.0)
        terms = [(column, 1.0), (here, -1.0)] + ([(source, 1.0)] if source >= 0 else [])
        self.row(terms, 0.0, np.inf)
        return column

    def _any(self, columns: list[int]) -> int:
        """A column no less than each of these."""
        if len(columns) == 1:
            return columns[0]
        some = self._column(1.0)
        for column in columns:
            self.row([(some, 1.0), (column, -1.0)], 0.0, np.inf)
        return some

    def _channels(self, sent: list[Terms]) -> None:
        """Rows: transfers into a device, and all transfers, fit the channels that they have."""
        p = self.problem
        pair = linked(p)
        for d, terms in enumerate(sent):
            # Each transfer holds one channel, and each channel has T: together so many times T.
            channels = len(np.unique(p.channel[pair[:, d], d]))
            self.row([*terms, (END, -float(channels))], -np.inf, 0.0)
        channels = len(np.unique(p.channel[pair]))
        self.row([*(t for terms in sent for t in terms), (END, -float(channels))], -np.inf, 0.0)

    def _paths(self, into: dict[tuple[int, int, int], tuple[int, float]]) -> None:
        p, own = self.problem, self.groups.group
        last = np.ones(p.n, dtype=np.bool_)
        for k in range(p.t):
            i = int(p.tensor_producer[k])
            for j in p.readers(k).tolist():
                last[i] = False
                ways = (into.get((k, int(own[j]), d), (0, 0.0)) for d in range(p.m))
                moved = [(c, -s) for c, s in ways if c > 0 and np.isfinite(s)]
                between = [(int(self.start[j]), 1.0), (int(self.start[i]), -1.0)]
                self.row([*between, *self.duration(i, -1.0), *moved], 0.0, np.inf)
        for i in np.flatnonzero(last).tolist():
            ends = [(END, 1.0), (int(self.start[i]), -1.0)]
            self.row([*ends, *self.duration(i, -1.0)], 0.0, np.inf)
