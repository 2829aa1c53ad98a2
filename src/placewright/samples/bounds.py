"""What no plan of wing 3 can beat.

**balance**. Without links in the way, samples could be anywhere. If the training ends at T, node
i has held at most ``(T - fixed_i) / work_i`` samples, at most its storage, and at least what it
must keep; all of them together hold all samples. The least such T, found by bisection, is a lower
bound for proportional batches, and for equal ones too, where a node trains no faster.

**lp**. Every limit and time of the judge, with ideal ports, is a linear row over the moves (equal
batches: an epoch takes ``sum_r (c_r - c_(r+1)) M_r``, nodes from the slowest on, M_r the most
samples among the first r). The plan's moves satisfy them, so the linear optimum is a lower bound;
queued ports only add to the transfers. What is returned is Lagrange's bound of multipliers that
were made to add up: see `placewright.samples.column_generation`. Late: it takes seconds.

The linear relaxation is solved by column generation: a bound for all planners, flows for rounding.
A master program holds some of the moves. Its multipliers price all the others at once (an n x n
array per class), those that pay join, and Lagrange's bound of the same multipliers says how far
the master's value can still fall. It stops as soon as that is less than `TOLERANCE`. Without a
label mix the samples are of one kind; the moves of a quick balance are there from the start, so
that the first value is near the last. Solvers see times of about 1, whatever the problem's are.

The program leaves half of what the judge allows a label mix to rounding. Where that cannot be
kept it grants all of it, and only if then nothing fits, whatever it takes, there is no plan.
"""

from __future__ import annotations

import math
import time
from copy import copy
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from placewright.errors import InfeasibleError, MissingDependencyError
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import BoundContext, Progress, silent
from placewright.samples.balance import NodeClock, clock_of, spread
from placewright.samples.column_generation import (
    MISSED,
    PER_NODE,
    Generated,
    check_possible,
    generate_columns,
)
from placewright.samples.flow_program import (
    ALLOWED,
    FlowProgram,
    Master,
    Moves,
    all_moves,
    in_units,
    program_of,
    usable_links,
)
from placewright.samples.problem import SampleProblem

FEW_MOVES = 4_000
"""Up to so many columns all are there from the beginning."""

PIECES = 16


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
    clock: NodeClock
    finished: bool


_SOLVED: WeakKeyDictionary[SampleProblem, Relaxation | InfeasibleError] = WeakKeyDictionary()
"""Of problems that are still in use, so that bound and planner share one solution."""


def begun(problem: SampleProblem) -> bool:
    """Whether `relaxation` has run before and has a (perhaps preliminary) result."""
    return problem in _SOLVED


def relaxation(
    problem: SampleProblem, deadline_s: float = math.inf, progress: Progress = silent
) -> Relaxation:
    """The relaxation of `problem`, as far as it can be solved until the deadline.

    What an earlier deadline cut goes on where it was; once the time is up it is as it is.

    Raises `InfeasibleError`: no plan keeps storage, protection and label mix.
    Raises `MissingDependencyError`: HiGHS is not installed.
    """
    known = _SOLVED.get(problem)
    if isinstance(known, InfeasibleError):
        raise copy(known)
    if known is not None and (known.finished or time.perf_counter() > deadline_s):
        return known
    try:
        found = _solved(merged(problem), known, deadline_s, progress)
    except InfeasibleError as error:
        _SOLVED[problem] = copy(error)  # without the frames, which hold the problem
        raise
    _SOLVED[problem] = found
    return found


def merged(problem: SampleProblem) -> SampleProblem:
    """The same with samples of one kind, where classes do not matter."""
    named = np.isfinite(problem.label_mix) or (problem.relay and bool(problem.keep.any()))
    if problem.k == 1 or named:
        return problem
    return problem.replace(
        samples=problem.held[:, None],
        keep=problem.keep.sum(axis=1, keepdims=True),
        class_names=("samples",),
    )


def _solved(
    problem: SampleProblem, before: Relaxation | None, deadline_s: float, progress: Progress
) -> Relaxation:
    """In seconds again."""
    scaled, units = in_units(problem)
    program = program_of(scaled)
    first = _first_moves(program, deadline_s) if before is None else before.moves
    found = _generated(program, first, deadline_s, _in_seconds(progress, units))
    master, clock = found.master, _clock(program, found.master)
    return Relaxation(
        copy(problem),  # what is kept for a problem must not hold it
        master.moves,
        master.flow(),
        master.value_s / units,
        max(found.bound / units, 0.0 if before is None else before.lower_bound_s),
        replace(clock, fixed=clock.fixed / units, offset=clock.offset / units),
        found.finished,
    )


def _generated(
    program: FlowProgram, first: Moves, deadline_s: float, progress: Progress
) -> Generated:
    """With what the judge allows where half of it is too little.

    Raises `InfeasibleError` (that is too little as well).
    """
    found = generate_columns(program, first, deadline_s, progress)
    if not found.misses:
        return found
    moves = check_possible(program, found.master.moves, deadline_s)
    again = generate_columns(
        program, moves, deadline_s, progress, slack=ALLOWED, most_missing=MISSED
    )
    return replace(again, bound=max(again.bound, found.bound))


def _in_seconds(progress: Progress, units: float) -> Progress:
    def report(*, what: str, value: float, bound: float, elapsed_s: float) -> None:
        progress(what=what, value=value, bound=bound / units, elapsed_s=elapsed_s)

    return report


def _first_moves(program: FlowProgram, deadline_s: float) -> Moves:
    """All of them where they are few; else cheap ones from surplus to deficit, and a balance's."""
    problem = program.problem
    every = all_moves(problem)
    if len(every) <= FEW_MOVES or problem.k > 1:
        return every
    state = spread(problem, clock_of(problem), PIECES, deadline_s)
    source, target = np.nonzero(((state.flow > 0) | _cheap(problem)) & usable_links(problem))
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


def _clock(program: FlowProgram, master: Master) -> NodeClock:
    """The fractional plan's times: every node's own is at most the last of them."""
    problem, times = program.problem, master.times()
    usual = clock_of(problem)
    if not any(rows.ranked for rows in program.rows):
        if program.times == 1:
            return usual
        return NodeClock(False, usual.fixed, float(times[1] - times[0]))
    end_s = float(times[-1])
    fixed = end_s - problem.work_s * master.steps()
    return NodeClock(False, fixed, end_s - float(times[0]))


HALVINGS = 100

SUMMED = 1e-9
"""Taken off: the judge sums in another order."""


def bounds(problem: SampleProblem) -> dict[str, float]:
    """Quick lower bounds by name, seconds."""
    return {"balance": _balance_s(problem) * (1 - SUMMED) + problem.epochs * problem.sync_s}


def refined_bounds(problem: SampleProblem, known: BoundContext | None = None) -> dict[str, float]:
    """The relaxation's bound, where HiGHS is installed; as good as the time allows.

    Raises `InfeasibleError`: no plan keeps every limit, and none that does is known.
    """
    deadline_s = np.inf if known is None else known.deadline_s
    if time.perf_counter() > deadline_s and not begun(problem):
        return {}
    try:
        return {"lp": relaxation(problem, deadline_s).lower_bound_s}
    except MissingDependencyError:
        return {}
    except InfeasibleError:
        if known is None or np.isinf(known.value):
            raise
        return {}  # the judge has seen one


def _balance_s(problem: SampleProblem) -> float:
    fixed, keep = problem.epochs * problem.fixed_s, problem.keep.sum(axis=1)
    total = int(problem.held.sum())
    low = float((problem.work_s * keep + fixed).max())
    high = max(low, float((problem.work_s * total + fixed).max()))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            hold = np.where(problem.work_s > 0, (middle - fixed) / problem.work_s, np.inf)
        if np.minimum(hold, problem.storage).sum() < total:
            low = middle
        else:
            high = middle
    return low
