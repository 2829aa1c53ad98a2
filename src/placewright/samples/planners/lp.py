"""The linear relaxation, rounded so that no sample is lost, then repaired.

Rounding down breaks little: a node that passes samples on may now send more than reaches it, and
one whose storage is full may receive more than leaves it. Both are repaired one node at a time by
moving less, so that it ends; only a node that was too full from the start must send more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Context, Proposal
from placewright.samples.balance import State
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.columns import Relaxation, relaxation
from placewright.samples.relaxation.generation import whole_plan


@final
@dataclass(frozen=True, slots=True)
class Lp:
    """Column generation on the linear program, flows rounded down, single samples balanced.

    Rounding down keeps every limit but leaves nodes with a few samples too many; those go, one
    by one, to whom they hurt least. With a label mix the same moves are rounded by HiGHS. The
    program's value is the lower bound.
    """

    name: ClassVar[str] = "lp"

    def unsupported_reason(self, problem: SampleProblem) -> str | None:
        """Takes every problem."""
        return None

    def __call__(self, problem: SampleProblem, context: Context) -> Proposal[SamplePlan]:
        """The plan; raises `InfeasibleError`: no plan keeps every limit."""
        relaxed = relaxation(problem, context.deadline_s, context.progress)
        rounded = _rounded(problem, relaxed, context)
        return replace(rounded, bound=relaxed.lower_bound_s)


def _rounded(problem: SampleProblem, relaxed: Relaxation, context: Context) -> Proposal[SamplePlan]:
    if relaxed.problem.k > 1:
        used = relaxed.flow > 0
        return whole_plan(relaxed.problem, relaxed.moves.where(used), context.deadline_s)
    state = State.of(relaxed.problem, whole_flow(relaxed))
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
