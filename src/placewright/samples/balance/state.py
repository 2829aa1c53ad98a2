"""Flows between nodes, of samples of any class, and the compiled balancing on them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Self

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.balance.kernel import BalanceInstance, Flows, balance
from placewright.samples.plan import SamplePlan, plan_of
from placewright.samples.problem import Batches, Duplex, Overlap, SampleProblem
from placewright.samples.simulation import port_seconds, waits_for_all

AT_ONCE = 1_000
"""Moves between two looks at the time: a few hundredths of a second among 2,000 nodes."""

LEVELS = 1.02
"""Ratio up to which two levels count as equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """When the balance takes a node to end: see `placewright.samples.balance.kernel`."""

    joined: bool
    fixed: FloatArray
    offset: float = 0.0


def clock_of(problem: SampleProblem) -> Clock:
    """Without knowing more: transfers and training in a row, or side by side where hidden."""
    fixed = problem.epochs * problem.fixed_s
    return Clock(problem.overlap is not Overlap.HIDDEN, fixed)


def exact_clock(problem: SampleProblem) -> bool:
    """Whether `clock_of` says what the judge says."""
    return problem.batches is Batches.PROPORTIONAL and not waits_for_all(problem)


@dataclass(slots=True, eq=False)
class State:
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
        clock: Clock,
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

    def last_s(self, clock: Clock) -> float:
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


def spread(problem: SampleProblem, clock: Clock, pieces: int, deadline_s: float) -> State:
    """Balance up to a level, the lowest that works by bisection, then without one.

    A level keeps fast neighbours of a late node from being filled beyond what they can train in
    time. The first pieces are the mean samples per node divided by `pieces`; they shrink, four
    times at a time, to single samples.
    """
    piece = max(1, int(problem.held.sum()) // (problem.n * pieces))
    best = State.of(problem)
    high = best.last_s(clock)
    low = float(problem.held.sum()) / float((1.0 / np.maximum(problem.work_s, 1e-300)).sum())
    while high > low * LEVELS and time.perf_counter() < deadline_s:
        level_s = math.sqrt(high * low)
        tried = State.of(problem)
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
