"""Only the access links limit: the shortest end by bisection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Context, Proposal
from placewright.samples.balance import FlowState
from placewright.samples.plan import SamplePlan
from placewright.samples.planners.simple import in_order, without_mix
from placewright.samples.problem import Batches, Overlap, Ports, SampleProblem
from placewright.samples.simulation import waits_for_all

HALVINGS = 200
"""More than enough for neighbouring floats."""


@final
@dataclass(frozen=True, slots=True)
class Nic:
    """For an end T, each node must send, or can take, a number of samples of its own.

    Where anyone reaches anyone at the pace of the two access links, an end T is possible exactly
    if what must leave the late nodes fits into the others. No node gains by doing both, as only
    the difference changes what it holds. Bisection on T; whole samples, so that the answer is the
    optimum and the last T that failed a lower bound. O(n) per halving.
    """

    name: ClassVar[str] = "nic"

    def unsupported_reason(self, problem: SampleProblem) -> str | None:
        """Where links differ by more than their ends, or with prices, mixes, barriers."""
        if problem.batches is Batches.EQUAL or waits_for_all(problem):
            return "needs nodes that end on their own (proportional batches, overlap B or C)"
        if problem.ports is Ports.QUEUED:
            return "needs ideal ports"
        if problem.price_s.any():
            return "moving has a price"
        if not _by_node(problem.send_s) or not _by_node(problem.receive_s.T):
            return "links differ by more than the nodes at their ends"
        return without_mix(problem)

    def __call__(self, problem: SampleProblem, context: Context) -> Proposal[SamplePlan]:
        """The plan."""
        send_s, receive_s = _own(problem.send_s), _own(problem.receive_s.T)
        low, high = 0.0, _longest(problem, send_s, receive_s)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if not low < middle < high:
                break
            must, can = _must_and_can(problem, middle, send_s, receive_s)
            low, high = (low, middle) if _fits(must, can) else (middle, high)
        must, can = _must_and_can(problem, high, send_s, receive_s)
        plan = FlowState.of(problem, in_order(problem, must, np.maximum(can, 0))).plan()
        proved = low * (1.0 - 1e-9) + problem.epochs * problem.sync_s
        return Proposal(plan, proved)


def _by_node(port_s: FloatArray) -> bool:
    """Whether every node has one time for all its links, and all of them."""
    off = ~np.eye(len(port_s), dtype=np.bool_)
    own = _own(port_s)
    same = (port_s == own[:, None]) | ~off
    return bool(same.all() and np.isfinite(own).all())


def _own(port_s: FloatArray) -> FloatArray:
    """Shape (n,): the time of each node's first link."""
    if len(port_s) == 1:
        return np.zeros(1)
    return np.append(port_s[0, 1], port_s[1:, 0])


def _fits(must: IntArray, can: IntArray) -> bool:
    return bool((must >= 0).all() and (can >= 0).all() and must.sum() <= can.sum())


def _longest(problem: SampleProblem, send_s: FloatArray, receive_s: FloatArray) -> float:
    """An end that is possible.

    Raises `InfeasibleError` (none is: what must stay and what may be stored exclude each other).
    """
    end = float((problem.work_s * problem.held + problem.epochs * problem.fixed_s).max()) or 1.0
    for _ in range(HALVINGS):
        if _fits(*_must_and_can(problem, end, send_s, receive_s)):
            return end
        end *= 2.0
    raise InfeasibleError(
        "no plan keeps storage and protection",
        where=problem.name,
        hint="raise a storage, or protect less",
    )


def _must_and_can(
    problem: SampleProblem, end_s: float, send_s: FloatArray, receive_s: FloatArray
) -> tuple[IntArray, IntArray]:
    """Shape (n,): the fewest samples that each must send, -1 where none suffice; and can take."""
    held, work, room = problem.held, problem.work_s, np.floor(problem.storage)
    fixed, stock = problem.epochs * problem.fixed_s, held - problem.keep.sum(axis=1)
    hidden = problem.overlap is Overlap.HIDDEN
    gain = work if hidden else work - send_s
    late = work * held + fixed - end_s
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(late > 0, np.where(gain > 0, late / gain, np.inf), 0.0)
        spare = -late / (work if hidden else work + receive_s)
        if hidden:
            spare = np.minimum(spare, end_s / receive_s)
    must = np.minimum(np.ceil(np.maximum(excess, held - room)), held + 1.0)
    port_s = np.where(must > 0, must * send_s, 0.0)
    training_s = work * (held - must) + fixed
    ends = np.maximum(port_s, training_s) if hidden else port_s + training_s
    possible = (must <= stock) & (ends <= end_s * (1.0 + 1e-12))
    can = np.where((must > 0) | ~(spare > 0), 0.0, np.minimum(spare, room - held))
    can = np.minimum(np.floor(can), float(held.sum()))
    return np.where(possible, must, -1).astype(np.int64), can.astype(np.int64)
