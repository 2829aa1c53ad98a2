"""Plans by simple rules: nothing moves, shares in proportion to speed, the thesis's greedy rule.

Where only the access links limit: the shortest end by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Context, Count, Proposal, TakesEveryProblem
from placewright.samples.balance import FlowState, clock_of, exact_clock, spread
from placewright.samples.judge import judge, waits_for_all
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.problem import Batches, Overlap, Ports, SampleProblem


@final
@dataclass(frozen=True, slots=True)
class NoMove(TakesEveryProblem):
    """Every sample stays where it is: what every other plan is compared with."""

    name: ClassVar[str] = "none"

    def __call__(self, problem: SampleProblem, context: Context) -> SamplePlan:
        """The empty plan."""
        return nothing()


def without_mix(problem: SampleProblem) -> str | None:
    """Why planners that know samples and no classes cannot plan; ``None`` if they can."""
    return "a label mix needs lp or ilp" if np.isfinite(problem.label_mix) else None


@final
@dataclass(frozen=True, slots=True)
class Proportional:
    """Every node trains equally long; what that takes to move is not looked at.

    The rule of static load balancing. Nodes with too many samples send, in the order of the
    problem, to nodes with too few, over direct links. O(n^2). Where the network is the bottleneck
    it is slower than not moving at all.
    """

    name: ClassVar[str] = "proportional"

    unsupported_reason = staticmethod(without_mix)

    def __call__(self, problem: SampleProblem, context: Context) -> SamplePlan:
        """The plan."""
        keep = problem.keep.sum(axis=1)
        target = shares(problem)
        surplus = np.minimum(np.maximum(problem.held - target, 0), problem.held - keep)
        deficit = np.maximum(target - problem.held, 0)
        return FlowState.of(problem, in_order(problem, surplus, deficit)).plan()


def shares(problem: SampleProblem) -> IntArray:
    """Shape (n,): samples in proportion to speed, as far as storage goes; they add up."""
    speed = 1.0 / np.maximum(problem.work_s, 1e-300)
    room = np.floor(problem.storage)
    total = int(problem.held.sum())
    share, full = np.zeros(problem.n), np.zeros(problem.n, dtype=np.bool_)
    while True:
        left = total - room[full].sum()
        share = np.where(full, room, speed * left / max(speed[~full].sum(), 1e-300))
        over = ~full & (share > room)
        if not over.any():
            break
        full |= over
    whole = np.floor(share).astype(np.int64)
    order = np.lexsort((np.arange(problem.n), whole - share))
    spare = order[(whole < room)[order]]
    whole[spare[: total - int(whole.sum())]] += 1
    return whole


def in_order(problem: SampleProblem, surplus: IntArray, deficit: IntArray) -> IntArray:
    """From the first with a surplus to the first with a deficit that it is linked to."""
    linked = np.isfinite(problem.send_s) & np.isfinite(problem.receive_s)
    flow = np.zeros((problem.n, problem.n), dtype=np.int64)
    short = deficit.copy()
    for i in np.flatnonzero(surplus).tolist():
        room = np.where(linked[i], short, 0)
        before = np.cumsum(room) - room
        flow[i] = np.clip(surplus[i] - before, 0, room)
        short -= flow[i]
    return flow


@final
@dataclass(frozen=True, slots=True)
class Greedy:
    """Take from the node that ends last, give where the worse of the two ends first.

    After T.-C. Yang, *Accelerate Deep Learning Model Training with Distributed Datasets in Edge
    Clouds*, NTHU 2020, whose formulas are not public. Transfer time is part of both ends; it
    stops when the last node cannot be helped. O(n) per move, about ``pieces * n`` moves.

    Departures: samples move in pieces that shrink by a factor of four each time nothing improves,
    down to one; what a node has been sent goes back before it sends its own on. Where the clock
    of the moves is only an estimate (barriers, equal batches), no move at all is kept if better.

    `pieces`: the first piece is the mean number of samples per node divided by this.
    """

    pieces: Count = 16
    name: ClassVar[str] = "greedy"

    unsupported_reason = staticmethod(without_mix)

    def __call__(self, problem: SampleProblem, context: Context) -> SamplePlan:
        """The plan."""
        state = spread(problem, clock_of(problem), self.pieces, context.deadline_s)
        plan = state.plan()
        if exact_clock(problem):
            return plan
        still = judge(problem, nothing())
        moved = judge(problem, plan)
        return nothing() if still.feasible and still.value <= moved.value else plan


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
