"""The thesis's integer program, by HiGHS, and its linear relaxation, rounded and repaired.

Rounding down breaks little: a node that passes samples on may now send more than reaches it, and
one whose storage is full may receive more than leaves it. Both are repaired one node at a time by
moving less, so that it ends; only a node that was too full from the start must send more. No sample
is lost.
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
MOST_STEPS = 100
"""Per node; a few have been enough so far."""


def whole_flow(relaxed: Relaxation) -> IntArray:
    """Shape (n, n): whole samples of one kind from i to j."""
    p = relaxed.problem
    flow = np.zeros((p.n, p.n), dtype=np.int64)
    down = np.floor(relaxed.flow + NEARLY_WHOLE).astype(np.int64)
    flow[relaxed.moves.source, relaxed.moves.target] = down
    now = _Flows(p, flow, flow.sum(axis=1), flow.sum(axis=0))
    for _ in range(MOST_STEPS * p.n):
        if not (_send_less(now) or _receive_less(now) or _send_more(now)):
            break
    return now.flow


@dataclass(frozen=True, slots=True, eq=False)
class _Flows:
    """Changed in place: samples from i to j, and what each node sends and receives."""

    problem: SampleProblem
    flow: IntArray
    sent: IntArray
    received: IntArray

    def add(self, i: int, j: int, count: int) -> None:
        self.flow[i, j] += count
        self.sent[i] += count
        self.received[j] += count

    def too_many(self) -> FloatArray:
        """Shape (n,): samples beyond the storage, below 0 where there is room."""
        p = self.problem
        over: FloatArray = np.subtract(p.held + self.received - self.sent, np.floor(p.storage))
        return over


def _send_less(now: _Flows) -> bool:
    """The node that sends most beyond what it may sends less; whether there was one."""
    p = now.problem
    over = now.sent - (now.received if p.relay else 0) - (p.held - p.keep.sum(axis=1))
    i = int(over.argmax())
    if over[i] <= 0:
        return False
    j = int(now.flow[i].argmax())
    now.add(i, j, -min(int(over[i]), int(now.flow[i, j])))
    return True


def _receive_less(now: _Flows) -> bool:
    """A node that is too full and receives receives less."""
    over = np.where(now.received > 0, now.too_many(), 0)
    j = int(over.argmax())
    if over[j] <= 0:
        return False
    i = int(now.flow[:, j].argmax())
    now.add(i, j, -min(int(over[j]), int(now.flow[i, j])))
    return True


def _send_more(now: _Flows) -> bool:
    """A node that is too full and receives nothing sends where there is room, the cheapest way."""
    p, too_many = now.problem, now.too_many()
    i = int(too_many.argmax())
    if too_many[i] <= 0:
        return False
    port_s = np.where(too_many < 0, p.send_s[i] + p.receive_s[i], np.inf)
    j = int(port_s.argmin())
    if not np.isfinite(port_s[j]):
        return False
    now.add(i, j, min(int(too_many[i]), -int(max(too_many[j], -p.held.sum()))))
    return True


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
