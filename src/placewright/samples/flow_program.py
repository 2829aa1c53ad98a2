"""Moving samples as a linear program, by families of rows; columns are moves.

Let ``x[i, j, c]`` be samples of class c that move from i to j, ``out_i``, ``in_i`` the seconds that
node i's port sends and receives and ``held_i`` its samples afterwards: all linear in x. Each *time
row* says that one of the times is at least ``u out_i + v in_i + weight_i held_i + fixed_i``; each
*limit row* keeps stock, storage or label mix. The rows are few and known, the columns are many, so
that a program may hold a part of them: see `placewright.samples.bounds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.samples.judge import waits_for_all
from placewright.samples.problem import Batches, Duplex, Overlap, SampleProblem
from placewright.solvers.programs import LinearProgram, Solution


@dataclass(frozen=True, slots=True, eq=False)
class TimeRows:
    """``time >= out_weight out_i + in_weight in_i + weight_i held_i + fixed_i`` for every i.

    `time` is 0 or 1: transfers and training may have a time each. With `ranked`, node i's time is
    not that one but its own number of steps.
    """

    time: int
    out_weight: float
    in_weight: float
    weight: FloatArray
    fixed: FloatArray
    ranked: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Columns: from `source` to `target`, of `sample_class`."""

    source: IntArray
    target: IntArray
    sample_class: IntArray

    def __len__(self) -> int:
        return len(self.source)

    def where(self, chosen: BoolArray) -> Moves:
        """Some of them."""
        return Moves(self.source[chosen], self.target[chosen], self.sample_class[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class FlowProgram:
    """The rows of a problem.

    Attributes
    ----------
    times
        How many times the objective adds up: 1, or 2 (transfers, then training).
    stock
        Shape (n, k): samples that may leave a node (with relays: net of what arrives).
    stored
        Nodes whose storage is limited.
    mixed
        Whether label-mix rows are there.
    """

    problem: SampleProblem
    times: int
    rows: tuple[TimeRows, ...]
    stock: IntArray
    stored: IntArray
    mixed: bool

    @property
    def ranks(self) -> FloatArray:
        """Equal batches: shape (n,), what one more step costs, slowest nodes first (`order`)."""
        work = self.problem.work_s[self.order]
        steps: FloatArray = work - np.append(work[1:], 0.0)
        return steps

    @property
    def order(self) -> IntArray:
        """Nodes, the slowest first."""
        return np.argsort(-self.problem.work_s, kind="stable")

    @property
    def constant_s(self) -> float:
        """What the objective has beside the times and the prices."""
        return self.problem.epochs * self.problem.sync_s


def program_of(problem: SampleProblem) -> FlowProgram:
    """The rows of `problem`; queued ports are relaxed to ideal ones."""
    zero, fixed = np.zeros(problem.n), problem.epochs * problem.fixed_s
    sides = [(1.0, 1.0)] if problem.duplex is Duplex.HALF else [(1.0, 0.0), (0.0, 1.0)]
    joined = problem.overlap is Overlap.STAGGERED and not waits_for_all(problem)
    if joined:
        rows = [TimeRows(0, u, v, problem.work_s, fixed) for u, v in sides]
    else:
        training = 1 if waits_for_all(problem) else 0
        rows = [TimeRows(0, u, v, zero, zero) for u, v in sides]
        equal = problem.batches is Batches.EQUAL
        weight = np.ones(problem.n) if equal else problem.work_s
        rows.append(TimeRows(training, 0.0, 0.0, weight, zero if equal else fixed, equal))
    return FlowProgram(
        problem=problem,
        times=2 if waits_for_all(problem) else 1,
        rows=tuple(rows),
        stock=problem.samples - problem.keep,
        stored=np.flatnonzero(np.isfinite(problem.storage)),
        mixed=bool(np.isfinite(problem.label_mix)),
    )


LARGEST_ENTRY = 1e15
"""HiGHS refuses columns with larger entries. Bounds hold without them: they price every link, and a
plan with such a move takes longer than any answer of a solver."""


def usable_links(problem: SampleProblem) -> BoolArray:
    """Shape (n, n): links whose times a solver takes."""
    tables = (problem.send_s, problem.receive_s, problem.price_s)
    usable: BoolArray = np.max(tables, axis=0) < LARGEST_ENTRY
    return usable


def all_moves(problem: SampleProblem) -> Moves:
    """Every move over a link, of every class of which its source may ever have a sample."""
    linked = usable_links(problem)
    stock = np.broadcast_to(problem.relay, problem.samples.shape) | (problem.samples > problem.keep)
    return Moves(*np.nonzero(linked[:, :, None] & stock[:, None, :]))


NEAR = 4
"""Powers of two from 1 that are near enough: the unit stays a second."""

LARGEST = 1000
"""Exponent of 2 that no time exceeds; what is rounded to nothing at the other end makes plans
faster, and bounds no less true."""


def in_units(problem: SampleProblem) -> tuple[SampleProblem, float]:
    """The same problem in another unit of time, and how many of these units a second has.

    The unit is about what a typical node takes for a sample, all epochs together; a second where
    that is near enough, else a power of two: apart from times next to 0 nothing is rounded.
    """
    units = _per_second(problem)
    if units == 1.0:
        return problem, units
    scaled = problem.replace(
        seconds_per_sample=problem.seconds_per_sample * units,
        fixed_s=problem.fixed_s * units,
        send_s=problem.send_s * units,
        receive_s=problem.receive_s * units,
        price_s=problem.price_s * units,
        sync_s=problem.sync_s * units,
    )
    return scaled, units


def _per_second(problem: SampleProblem) -> float:
    """A power of two; 1 where nothing takes any time."""
    linked = problem.send_s + problem.receive_s
    for times in (problem.work_s, linked[np.isfinite(linked)]):
        if (times > 0).any():
            wanted = -round(math.log2(float(np.median(times[times > 0]))))
            near = abs(wanted) <= NEAR
            return 1.0 if near else math.ldexp(1.0, min(wanted, LARGEST - _exponent(problem)))
    return 1.0


def _exponent(problem: SampleProblem) -> int:
    """Of the power of two that no time of the problem exceeds, 0 where that is less than 1."""
    p = problem
    tables = (p.seconds_per_sample, p.fixed_s, p.price_s, p.send_s, p.receive_s)
    largest_s = max(float(t[np.isfinite(t)].max(initial=p.sync_s)) for t in tables)
    return max(0, math.frexp(largest_s)[1])


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
        program: FlowProgram,
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
        # Steps are whole as moves are.
        self._steps = self.linear.columns(ranks, whole=whole)
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


def mix_sides(program: FlowProgram, slack: float) -> tuple[FloatArray, FloatArray]:
    """Right sides of ``held_c - (g + d) held <= side`` and ``(g - d) held - held_c <= side``.

    `slack` is what the mix may be missed by, in samples.
    """
    p = program.problem
    total = p.held[:, None]
    low, high = mix_range(program)
    return high * total - p.samples + slack, p.samples - low * total + slack


def mix_range(program: FlowProgram) -> tuple[FloatArray, FloatArray]:
    """Shape (k,): the smallest and the largest share of each class."""
    p = program.problem
    share = p.samples.sum(axis=0) / p.samples.sum()
    return share - p.label_mix, share + p.label_mix
