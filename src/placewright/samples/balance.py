"""Flows between nodes, of samples of any class, and the compiled balancing on them.

What is taken from the node that ends last goes where the worse of the two ends first. Node i ends
at ``max(t_i + offset, w_i)``, or at ``t_i + w_i`` where that is `joined`, with t_i what its port
takes and ``w_i = work_i held_i + fixed_i``. What j sent to i goes back before i sends samples of
its own to j.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_inline, njit_internal, njit_no_refcount
from placewright.samples.judge import port_seconds, waits_for_all
from placewright.samples.plan import SamplePlan, plan_of
from placewright.samples.problem import Batches, Duplex, Overlap, SampleProblem

AT_ONCE = 1_000
"""Moves between two looks at the time: a few hundredths of a second among 2,000 nodes."""

LEVELS = 1.02
"""Ratio up to which two levels count as equal."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeClock:
    """When the balance takes a node to end: see the module's docstring."""

    joined: bool
    fixed: FloatArray
    offset: float = 0.0


def clock_of(problem: SampleProblem) -> NodeClock:
    """Without knowing more: transfers and training in a row, or side by side where hidden."""
    fixed = problem.epochs * problem.fixed_s
    return NodeClock(problem.overlap is not Overlap.HIDDEN, fixed)


def exact_clock(problem: SampleProblem) -> bool:
    """Whether `clock_of` says what the judge says."""
    return problem.batches is Batches.PROPORTIONAL and not waits_for_all(problem)


@dataclass(slots=True, eq=False)
class FlowState:
    """Flows and what they do to each node.

    Attributes
    ----------
    flow
        Shape (n, n): samples from i to j.
    held, sent
        Shape (n,): samples after the move, and of its own that the node sends.
    out_s, in_s
        Shape (n,): seconds of each port.
    """

    problem: SampleProblem
    flow: IntArray
    held: IntArray
    sent: IntArray
    out_s: FloatArray
    in_s: FloatArray

    @classmethod
    def of(cls, problem: SampleProblem, flow: IntArray | None = None) -> Self:
        """The state after `flow`; before any where there is none."""
        n = problem.n
        if flow is None:
            flow = np.zeros((n, n), dtype=np.int64)
        source, target = np.nonzero(flow)
        count = flow[source, target]
        sent = flow.sum(axis=1)
        return cls(
            problem,
            flow.copy(),
            problem.held - sent + flow.sum(axis=0),
            sent,
            port_seconds(source, count * problem.send_s[source, target], n),
            port_seconds(target, count * problem.receive_s[source, target], n),
        )

    def balance(
        self,
        clock: NodeClock,
        quantum: int,
        level_s: float = math.inf,
        deadline_s: float = math.inf,
    ) -> int:
        """Help the node that ends last, `quantum` samples at a time; how many moves that took.

        No node is given samples with which it would end after `level_s`. Soon after the deadline it
        is left as it is.
        """
        p = self.problem
        keep = p.keep.sum(axis=1)
        given = BalanceInstance(
            p.send_s,
            p.receive_s,
            p.work_s,
            clock.fixed,
            keep,
            p.held - keep,
            p.storage,
            clock.joined,
            p.duplex is Duplex.HALF,
            p.relay,
            clock.offset,
        )
        flows = Flows(self.flow, self.held, self.sent, self.out_s, self.in_s)
        moves = 0
        while True:
            made = balance(given, flows, quantum, level_s, AT_ONCE)
            moves += made
            if made < AT_ONCE or time.perf_counter() > deadline_s:
                return moves

    def last_s(self, clock: NodeClock) -> float:
        """When the last node ends."""
        half = self.problem.duplex is Duplex.HALF
        port_s = self.out_s + self.in_s if half else np.maximum(self.out_s, self.in_s)
        work_s = self.problem.work_s * self.held + clock.fixed
        end_s = port_s + work_s if clock.joined else np.maximum(port_s + clock.offset, work_s)
        return float(end_s.max())

    def plan(self) -> SamplePlan:
        """The plan; classes are shared out among the moves where there are several."""
        if self.problem.k == 1:
            return plan_of(self.problem, self.flow)
        return plan_of(self.problem, with_classes(self.problem, self.flow))


def with_classes(problem: SampleProblem, flow: IntArray) -> IntArray:
    """Shape (n, n, k): flows of samples of no matter which class, as flows of each class.

    A node sends of each class in proportion to what it may send then. With relays that is also
    what has arrived, and a node that has to wait for it has another turn.
    """
    split = np.zeros((*flow.shape, problem.k), dtype=np.int64)
    left, rest = problem.samples - problem.keep, flow.copy()
    waiting = True
    while waiting:
        waiting = False
        for i, j in np.argwhere(rest).tolist():
            share = share_out(min(int(rest[i, j]), int(left[i].sum())), left[i])
            split[i, j] += share
            left[i] -= share
            left[j] += share if problem.relay else 0
            rest[i, j] -= share.sum()
            waiting = waiting or bool(share.any())
    return split


def share_out(count: int, left: IntArray) -> IntArray:
    """`count` in proportion to `left`, never more than it: largest remainders first."""
    exact = count * left / max(int(left.sum()), 1)
    share = np.floor(exact).astype(np.int64)
    order = np.argsort(share - exact, kind="stable")
    share[order[: count - int(share.sum())]] += 1
    whole: IntArray = share
    return whole


def spread(problem: SampleProblem, clock: NodeClock, pieces: int, deadline_s: float) -> FlowState:
    """Balance up to a level, the lowest that works by bisection, then without one.

    A level keeps fast neighbours of a late node from being filled beyond what they can train in
    time. The first pieces are the mean samples per node divided by `pieces`; they shrink, four
    times at a time, to single samples.
    """
    piece = max(1, int(problem.held.sum()) // (problem.n * pieces))
    best = FlowState.of(problem)
    high = best.last_s(clock)
    low = float(problem.held.sum()) / float((1.0 / np.maximum(problem.work_s, 1e-300)).sum())
    while high > low * LEVELS and time.perf_counter() < deadline_s:
        level_s = math.sqrt(high * low)
        tried = FlowState.of(problem)
        tried.balance(clock, piece, level_s, deadline_s)
        last_s = tried.last_s(clock)
        best = min(best, tried, key=lambda state: state.last_s(clock))
        low, high = (low, level_s) if last_s <= level_s else (level_s, min(high, last_s))
    while time.perf_counter() < deadline_s:
        best.balance(clock, piece, deadline_s=deadline_s)
        if piece == 1:
            break
        piece = max(1, piece // 4)
    return best


LESS = 1e-12
"""Smallest relative step that counts as ending earlier."""

UNLIMITED = 1e300


@by_reference
class BalanceInstance(NamedTuple):
    """A problem as the kernel reads it; see `placewright.samples.problem.SampleProblem`.

    Seconds per sample: ``send_s[i, j]`` at i's port and ``receive_s[i, j]`` at j's for samples from
    i to j, `work` by node. `half`: a port does not send and receive at once. `relay`: a node may
    hand on what it was given, as long as it keeps `keep`; else only of its own `stock`.
    """

    send_s: FloatArray
    receive_s: FloatArray
    work: FloatArray
    fixed: FloatArray
    keep: IntArray
    stock: IntArray
    storage: FloatArray
    joined: bool
    half: bool
    relay: bool
    offset: float


class Flows(NamedTuple):
    """What changes in place: samples from i to j; what each holds, has sent; its ports' seconds."""

    flow: IntArray
    held: IntArray
    sent: IntArray
    out_s: FloatArray
    in_s: FloatArray


@njit_inline
def end_s(given: BalanceInstance, out_s: float, in_s: float, work_s: float) -> float:
    """When a node ends."""
    port_s = out_s + in_s if given.half else max(out_s, in_s)
    return port_s + work_s if given.joined else max(port_s + given.offset, work_s)


@njit_internal
def last_node(given: BalanceInstance, now: Flows) -> tuple[int, float]:
    """The node that ends last, and when."""
    node, last = 0, -1.0
    for i in range(len(given.work)):
        work_s = given.work[i] * now.held[i] + given.fixed[i]
        end = end_s(given, now.out_s[i], now.in_s[i], work_s)
        if end > last:
            node, last = i, end
    return node, last


@njit_internal
def movable(given: BalanceInstance, now: Flows, a: int, b: int, quantum: int, level: float) -> int:
    """How many samples a may hand to b; those that go back first."""
    # Samples of b that lie at a: sending them back undoes a transfer, and is never blocked by
    # links.
    back = now.flow[b, a]
    if back == 0 and not given.send_s[a, b] + given.receive_s[a, b] < UNLIMITED:
        return 0
    left = now.held[a] - given.keep[a] if given.relay else given.stock[a] - now.sent[a]
    count: int = min(quantum, back if back > 0 else left, now.held[a])
    # A relay's own samples may have gone on: what lies there is all that it has left to keep.
    if given.relay:
        count = min(count, left)
    if given.storage[b] < UNLIMITED:
        count = min(count, int(given.storage[b]) - now.held[b])
    # Fewer, where b would end after `level`: a lower estimate, as its port's and its work's seconds
    # are added.
    if back == 0 and level < UNLIMITED:
        work_s = given.work[b] * now.held[b] + given.fixed[b]
        spare = level - end_s(given, now.out_s[b], now.in_s[b], work_s)
        each = given.receive_s[a, b] + given.work[b]
        if count * each > spare:
            count = int(spare / each) if spare > 0 else 0
    return count


@njit_internal
def ends_after(
    given: BalanceInstance, now: Flows, a: int, b: int, count: int
) -> tuple[float, float]:
    """When a and b end if a hands `count` samples to b."""
    out_a, in_a, out_b, in_b = now.out_s[a], now.in_s[a], now.out_s[b], now.in_s[b]
    # The transfer from b to a shrinks: a receives less, b sends less.
    if now.flow[b, a] > 0:
        in_a -= count * given.receive_s[b, a]
        out_b -= count * given.send_s[b, a]
    else:
        out_a += count * given.send_s[a, b]
        in_b += count * given.receive_s[a, b]
    work_a = given.work[a] * (now.held[a] - count) + given.fixed[a]
    work_b = given.work[b] * (now.held[b] + count) + given.fixed[b]
    return end_s(given, out_a, in_a, work_a), end_s(given, out_b, in_b, work_b)


@njit_internal
def hand_over(given: BalanceInstance, now: Flows, a: int, b: int, count: int) -> None:
    """Give `count` samples of a to b."""
    now.held[a] -= count
    now.held[b] += count
    if now.flow[b, a] > 0:
        now.flow[b, a] -= count
        now.sent[b] -= count
        now.in_s[a] -= count * given.receive_s[b, a]
        now.out_s[b] -= count * given.send_s[b, a]
    else:
        now.flow[a, b] += count
        now.sent[a] += count
        now.out_s[a] += count * given.send_s[a, b]
        now.in_s[b] += count * given.receive_s[a, b]


@njit_no_refcount
def balance(given: BalanceInstance, now: Flows, quantum: int, level: float, most: int) -> int:
    """Move `quantum` samples at a time until the last node cannot be helped; returns the moves.

    No node is given samples with which it would end after `level`; a last node that ends before it
    needs no help. After `most` moves it returns, and may be called again to go on.
    """
    moves = 0
    while moves < most:
        a, last = last_node(given, now)
        if last <= level < UNLIMITED:
            return moves
        # By more than rounding, or two nodes could hand a sample to and fro for ever.
        best, best_end, best_count = -1, last * (1.0 - LESS), 0
        for b in range(len(given.work)):
            count = 0 if b == a else movable(given, now, a, b, quantum, level)
            if count < 1:
                continue
            end_a, end_b = ends_after(given, now, a, b, count)
            if max(end_a, end_b) < best_end and end_b <= level:
                best, best_end, best_count = b, max(end_a, end_b), count
        if best < 0:
            return moves
        hand_over(given, now, a, best, best_count)
        moves += 1
    return moves
