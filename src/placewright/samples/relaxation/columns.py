"""The linear relaxation by column generation: a bound for everybody, flows for rounding.

A master program holds some of the moves. Its multipliers price all the others at once (an n x n
array per class), those that pay join, and Lagrange's bound of the same multipliers says how far
the master's value can still fall. It stops as soon as that is less than `TOLERANCE`. Without a
label mix the samples are of one kind; the moves of a quick balance are there from the start, so
that the first value is near the last.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from placewright.arrays import FloatArray
from placewright.errors import InfeasibleError
from placewright.planning import Progress, silent
from placewright.samples.balance.state import Clock, clock_of, spread
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.master import Master
from placewright.samples.relaxation.pricing import bound_and_columns, price
from placewright.samples.relaxation.program import Moves, Program, all_moves, program_of

TOLERANCE = 2e-4
"""Relative distance of the master's value from the bound at which the generation stops."""

FEW_MOVES = 4_000
"""Up to so many columns all are there from the beginning."""

PER_NODE = 5
"""Columns that join per round, out of and into each node."""

PIECES = 16
SUMMED = 1e-9
"""Taken off the bound: the judge sums in another order."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """What a fractional plan would take.

    Attributes
    ----------
    problem
        The problem whose samples are of one kind where classes do not matter.
    moves, flow
        Columns and how many samples (fractions) each moves.
    value_s
        Of the fractional plan; at least `lower_bound_s`.
    clock
        When nodes end, in a form in which the fractional plan is balanced.
    finished
        Whether value and bound have met.
    """

    problem: SampleProblem
    moves: Moves
    flow: FloatArray
    value_s: float
    lower_bound_s: float
    clock: Clock
    finished: bool


_SOLVED: WeakKeyDictionary[SampleProblem, Relaxation] = WeakKeyDictionary()
"""Of problems that are still in use, so that bound and planner share one solution."""


def relaxation(
    problem: SampleProblem, deadline_s: float = math.inf, progress: Progress = silent
) -> Relaxation:
    """The relaxation of `problem`, as far as it can be solved until the deadline.

    Raises
    ------
    InfeasibleError
        No plan keeps storage, protection and label mix.
    MissingDependencyError
        HiGHS is not installed.
    """
    known = _SOLVED.get(problem)
    if known is None or not known.finished:
        known = _generate(merged(problem), deadline_s, progress)
        _SOLVED[problem] = known
    return known


def merged(problem: SampleProblem) -> SampleProblem:
    """The same with samples of one kind, where classes do not matter."""
    named = np.isfinite(problem.label_mix) or (problem.relay and bool(problem.keep.any()))
    if problem.k == 1 or named:
        return problem
    return problem.asked(
        samples=problem.held[:, None],
        keep=problem.keep.sum(axis=1, keepdims=True),
        class_names=("samples",),
    )


def _generate(problem: SampleProblem, deadline_s: float, progress: Progress) -> Relaxation:
    program, start = program_of(problem), time.perf_counter()
    master = Master(program)
    master.add(_first_moves(program))
    bound, finished, present = 0.0, False, _Present(problem, master.moves)
    while master.solve(deadline_s):
        pricing = price(program, master.prices())
        proved, found, _ = bound_and_columns(pricing, PER_NODE)
        bound = max(bound, proved * (1.0 - SUMMED))
        progress(
            what=f"{len(master.moves)} moves",
            value=math.inf,
            lower_bound=bound,
            elapsed_s=time.perf_counter() - start,
        )
        fresh = present.add(found)
        finished = master.value_s <= bound * (1.0 + TOLERANCE) or len(fresh) == 0
        if finished or time.perf_counter() > deadline_s:
            break
        master.add(fresh)
    if finished and master.missing > 1e-6:
        raise InfeasibleError(
            "no plan keeps storage, protection and label mix",
            where=problem.name,
            by=f"at least {master.missing:.1f} samples are in the wrong place",
            hint="widen label_mix, raise a storage, or protect less",
        )
    return Relaxation(
        problem,
        master.moves,
        master.flow(),
        master.value_s,
        bound,
        _clock(program, master),
        finished,
    )


class _Present:
    """Which columns the master has; reduced costs near zero may ask for one again."""

    def __init__(self, problem: SampleProblem, moves: Moves) -> None:
        self._here = np.zeros((problem.n, problem.n, problem.k), dtype=np.bool_)
        self.add(moves)

    def add(self, moves: Moves) -> Moves:
        """Those of `moves` that are new."""
        at = (moves.source, moves.target, moves.sample_class)
        new = ~self._here[at]
        self._here[at] = True
        return Moves(*(entries[new] for entries in at))


def _first_moves(program: Program) -> Moves:
    """All of them where they are few; else cheap ones from surplus to deficit, and a balance's."""
    problem = program.problem
    every = all_moves(problem)
    if len(every) <= FEW_MOVES or problem.k > 1:
        return every
    state = spread(problem, clock_of(problem), PIECES, math.inf)
    source, target = np.nonzero((state.flow > 0) | _cheap(problem))
    return Moves(source, target, np.zeros(len(source), dtype=np.int64))


def _cheap(problem: SampleProblem) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """From nodes above to nodes below the balance: the links that cost the two the least."""
    weight = 1.0 / np.maximum(problem.work_s, 1e-300)
    above = problem.held > problem.held.sum() * weight / weight.sum()
    cost = problem.send_s * weight[:, None] + problem.receive_s * weight[None, :]
    cost = np.where(above[:, None] & ~above[None, :], cost, np.inf)
    few = min(PER_NODE, problem.n - 1)
    chosen = np.zeros(cost.shape, dtype=np.bool_)
    np.put_along_axis(chosen, np.argpartition(cost, few, axis=1)[:, :few], True, axis=1)
    np.put_along_axis(chosen, np.argpartition(cost, few, axis=0)[:few], True, axis=0)
    return chosen & np.isfinite(cost)


def _clock(program: Program, master: Master) -> Clock:
    """The fractional plan's times: every node's own is at most the last of them."""
    problem, times = program.problem, master.times()
    usual = clock_of(problem)
    if not any(rows.ranked for rows in program.rows):
        if program.times == 1:
            return usual
        return Clock(False, usual.fixed, float(times[1] - times[0]))
    end_s = float(times[-1])
    fixed = end_s - problem.work_s * master.steps()
    return Clock(False, fixed, end_s - float(times[0]))
