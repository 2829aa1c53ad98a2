"""The thesis's integer program, by HiGHS, and its linear relaxation, rounded and repaired.

Rounding down breaks little: a node that passes samples on may now send more than reaches it, and
one whose storage is full may receive more than leaves it. The fewest samples that repair it are a
linear program once more: that of a network, whose corners are whole. They move less where that
suffices, and more where a node was too full from the start. No sample is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Context, Proposal, TakesEveryProblem
from placewright.samples.balance import FlowState, with_classes
from placewright.samples.bounds import Relaxation, merged, relaxation
from placewright.samples.column_generation import whole_plan
from placewright.samples.flow_program import Moves, all_moves
from placewright.samples.plan import SamplePlan, plan_of
from placewright.samples.problem import SampleProblem
from placewright.solvers.programs import LinearProgram


@final
@dataclass(frozen=True, slots=True)
class Lp(TakesEveryProblem):
    """Column generation on the linear program, flows rounded down, single samples balanced.

    Rounding down keeps every limit but leaves nodes with a few samples too many; those go, one
    by one, to whom they hurt least. With a label mix the same moves are rounded by HiGHS. The
    program's value is the lower bound.
    """

    name: ClassVar[str] = "lp"

    def __call__(self, problem: SampleProblem, context: Context) -> Proposal[SamplePlan]:
        """The plan; raises `InfeasibleError`: no plan keeps every limit."""
        relaxed = relaxation(problem, context.deadline_s, context.progress)
        rounded = _rounded(problem, relaxed, context)
        return replace(rounded, bound=relaxed.lower_bound_s)


def _rounded(problem: SampleProblem, relaxed: Relaxation, context: Context) -> Proposal[SamplePlan]:
    if relaxed.problem.k > 1:
        used = relaxed.flow > 0
        return whole_plan(relaxed.problem, relaxed.moves.where(used), context.deadline_s)
    state = FlowState.of(relaxed.problem, whole_flow(relaxed))
    state.balance(relaxed.clock, 1, deadline_s=context.deadline_s)
    return Proposal(replace(state, problem=problem).plan())


NEARLY_WHOLE = 1e-6


def whole_flow(relaxed: Relaxation) -> IntArray:
    """Shape (n, n): whole samples of one kind from i to j."""
    p, i, j = relaxed.problem, relaxed.moves.source, relaxed.moves.target
    down = np.floor(relaxed.flow + NEARLY_WHOLE)
    sent, received = (np.bincount(at, down, minlength=p.n) for at in (i, j))
    own = p.held - p.keep.sum(axis=1) - sent + (received if p.relay else 0)
    room = np.floor(p.storage) - (p.held + received - sent)
    if min(own.min(), room.min()) < 0:
        down = np.maximum(down + _repair(relaxed, down, own, room), 0)
    flow = np.zeros((p.n, p.n), dtype=np.int64)
    flow[i, j] = down
    return flow


def _repair(relaxed: Relaxation, down: FloatArray, own: FloatArray, room: FloatArray) -> FloatArray:
    """Shape (moves,): how many more samples, or less, nodes send; none where nothing fits.

    `own`, `room`: shape (n,): samples that each may still send, and take; below 0 where rounding
    `down` has broken a limit.
    """
    p, i, j = relaxed.problem, relaxed.moves.source, relaxed.moves.target
    port_s = p.send_s[i, j] + p.receive_s[i, j]
    used = relaxed.flow > down
    # No path is longer than all nodes: less is moved before more, and by new links at last.
    dear = p.n * np.where(used, 1.0, p.n * (1.0 + port_s / (port_s.max(initial=0.0) or 1.0)))
    linear = LinearProgram(stoppable=False)
    more, less = linear.columns(len(i), cost=dear), linear.columns(len(i), high=down, cost=1.0)
    stock, stored = linear.rows(p.n, high=own), linear.rows(p.n, high=room)
    for columns, sign in ((more, 1.0), (less, -1.0)):
        linear.enter(stock[i], columns, sign)
        linear.enter(stock[j], columns, -sign * p.relay)
        linear.enter(stored[i], columns, -sign)
        linear.enter(stored[j], columns, sign)
    found = linear.solve().values
    return np.zeros(len(i)) if found is None else np.rint(found[more] - found[less])


MOST_MOVES = 20_000
"""Columns from which branching is hopeless and memory is better used otherwise."""


@final
@dataclass(frozen=True, slots=True)
class Ilp:
    """Every move a whole number: branch and cut, started from the rounded relaxation.

    After T.-C. Yang, NTHU 2020 (see `greedy`); the formulas are ours. Its bound is proved by
    branching where that is better than the relaxation's; with a label mix the relaxation's alone
    is taken, as solvers keep the mix by a hair more than the judge. Exponential; stops at the time
    limit.
    """

    name: ClassVar[str] = "ilp"

    def unsupported_reason(self, problem: SampleProblem) -> str | None:
        """Where there are too many moves."""
        moves = len(all_moves(merged(problem)))
        return f"{moves} moves are too many (of {MOST_MOVES})" if moves > MOST_MOVES else None

    def __call__(self, problem: SampleProblem, context: Context) -> Proposal[SamplePlan]:
        """The plan.

        Raises `InfeasibleError` (no plan of whole samples was found in time) or
        `MissingDependencyError` (HiGHS is not installed).
        """
        one = merged(problem)
        moves = all_moves(one)
        relaxed = relaxation(problem, context.deadline_s, context.progress)
        found = whole_plan(
            one,
            moves,
            context.deadline_s,
            start=_counts(one, moves, context.incumbent or _start(problem, context)),
            every=True,
        )
        plan = found.plan
        if one.k < problem.k:
            whole = FlowState.of(one).flow
            np.add.at(whole, (plan.source, plan.target), plan.count)
            plan = plan_of(problem, with_classes(problem, whole))
        bound = max(found.bound or 0.0, relaxed.lower_bound_s)
        return Proposal(plan, bound, interrupted=found.interrupted)


def _start(problem: SampleProblem, context: Context) -> SamplePlan | None:
    """The relaxation's plan, where rounding finds one."""
    try:
        return Lp()(problem, context).plan
    except InfeasibleError:
        return None


def _counts(one: SampleProblem, moves: Moves, plan: SamplePlan | None) -> FloatArray | None:
    """Shape (moves,): samples of `plan` by move, the classes of `one`."""
    if plan is None:
        return None
    flow = np.zeros((one.n, one.n, one.k))
    kind = plan.sample_class if one.k > 1 else np.zeros_like(plan.sample_class)
    np.add.at(flow, (plan.source, plan.target, kind), plan.count)
    counts: FloatArray = flow[moves.source, moves.target, moves.sample_class]
    return counts
