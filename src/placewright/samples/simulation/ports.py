"""Transfers played one after another: a port serves one at a time and waits for the other end.

Whenever a port is free, the first move in the plan's order whose other port is free too and
whose source holds samples starts. A relay that does not hold everything yet sends what it has,
and the rest when more has arrived.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import Duplex, SampleProblem


@dataclass(frozen=True, slots=True, eq=False)
class PortTimes:
    """Spans of the transfers, in the order of their start.

    Attributes
    ----------
    move, count, start_s, end_s
        One entry per span: index of the move, samples, seconds.
    stuck
        Samples that could never leave, because their source never held them.
    """

    move: IntArray
    count: IntArray
    start_s: FloatArray
    end_s: FloatArray
    stuck: int

    def node_s(self, problem: SampleProblem, plan: SamplePlan) -> FloatArray:
        """Shape (n,): end of each node's last transfer."""
        last = np.zeros(problem.n)
        np.maximum.at(last, plan.source[self.move], self.end_s)
        np.maximum.at(last, plan.target[self.move], self.end_s)
        return last


def play(problem: SampleProblem, plan: SamplePlan) -> PortTimes:
    """Play the transfers of `plan`."""
    game = _Game(problem, plan)
    game.start(range(len(plan.source)))
    while game.running:
        game.end_next()
    return game.played()


class _Game:
    """Ports, what each node holds, and the moves that are left."""

    def __init__(self, problem: SampleProblem, plan: SamplePlan) -> None:
        self.source, self.target = plan.source.tolist(), plan.target.tolist()
        self.kind, self.left = plan.sample_class.tolist(), plan.count.tolist()
        at = (plan.source, plan.target)
        self.sample_s = np.maximum(problem.send_s[at], problem.receive_s[at]).tolist()
        self.latency_s = problem.latency_s[at].tolist()
        self.held = problem.samples.tolist()
        self.n = problem.n
        self.busy = [False] * (2 * problem.n)
        self.receive_port = problem.n if problem.duplex is Duplex.FULL else 0
        self.of_node: list[list[int]] = [[] for _ in range(problem.n)]
        for m, (i, j) in enumerate(zip(self.source, self.target, strict=True)):
            self.of_node[i].append(m)
            self.of_node[j].append(m)
        self.now_s = 0.0
        self.running: list[tuple[float, int, int]] = []
        self.spans: list[tuple[int, int, float, float]] = []

    def start(self, moves: range | list[int]) -> None:
        """Start what can start, the first first."""
        for m in moves:
            i, into = self.source[m], self.target[m] + self.receive_port
            count = min(self.left[m], self.held[i][self.kind[m]])
            if count < 1 or self.busy[i] or self.busy[into]:
                continue
            end_s = self.now_s + self.latency_s[m] + count * self.sample_s[m]
            self.busy[i] = self.busy[into] = True
            self.left[m] -= count
            self.held[i][self.kind[m]] -= count
            self.spans.append((m, count, self.now_s, end_s))
            heapq.heappush(self.running, (end_s, m, count))

    def end_next(self) -> None:
        """The next transfer arrives; both nodes look for what to do."""
        self.now_s, m, count = heapq.heappop(self.running)
        i, j = self.source[m], self.target[m]
        self.busy[i] = self.busy[j + self.receive_port] = False
        self.held[j][self.kind[m]] += count
        for node in (i, j):
            self.of_node[node] = [x for x in self.of_node[node] if self.left[x] > 0]
        self.start(sorted({*self.of_node[i], *self.of_node[j]}))

    def played(self) -> PortTimes:
        """What happened."""
        move, count, start_s, end_s = zip(*self.spans, strict=True) if self.spans else [()] * 4
        return PortTimes(
            np.array(move, dtype=np.int64),
            np.array(count, dtype=np.int64),
            np.array(start_s, dtype=np.float64),
            np.array(end_s, dtype=np.float64),
            sum(self.left),
        )
