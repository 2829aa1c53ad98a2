"""Moving samples as a linear program, by families of rows; columns are moves.

Let ``x[i, j, c]`` be samples of class c that move from i to j, ``out_i``, ``in_i`` the seconds that
node i's port sends and receives and ``held_i`` its samples afterwards: all linear in x. Each *time
row* says that one of the times is at least ``u out_i + v in_i + weight_i held_i + fixed_i``; each
*limit row* keeps stock, storage or label mix. The rows are few and known, the columns are many, so
that a program may hold a part of them: see `placewright.samples.relaxation.columns`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.samples.problem import Batches, Duplex, Overlap, SampleProblem
from placewright.samples.simulation import waits_for_all


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
class Program:
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


def program_of(problem: SampleProblem) -> Program:
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
    return Program(
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
