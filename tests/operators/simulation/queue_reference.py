"""Slow reference of first come, first served queues: rules Q1 to Q6, one heap of all events."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from placewright.operators.problem import OperatorProblem


class QueueOutcome(NamedTuple):
    """Start and end of every operator, and the end of the last one, in seconds or ticks."""

    start: list[float]
    end: list[float]
    value: float


def simulate_queues(problem: OperatorProblem, placement: Sequence[int]) -> QueueOutcome:
    """Every event, also one that is due at once, goes through one heap by (time, counter)."""
    return _Play(problem, list(placement)).run()


class _Play:
    def __init__(self, p: OperatorProblem, place: list[int]) -> None:
        self.p, self.place, self.counter = p, place, 0
        self.heap: list[tuple[float, int, str, int]] = []
        self.queue: list[deque[int]] = [deque() for _ in range(p.m)]
        self.busy = [False] * p.m
        self.start, self.end = [-1.0] * p.n, [-1.0] * p.n
        self.edges: list[tuple[int, int, int]] = []  # producer, tensor, reader
        for i in range(p.n):
            for k in range(p.t):
                if p.tensor_producer[k] == i:
                    readers = p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]
                    self.edges += [(i, k, int(j)) for j in readers]
        self.missing = [sum(j == i for _, _, j in self.edges) for i in range(p.n)]

    def due(self, at: float, kind: str, what: int) -> None:
        heapq.heappush(self.heap, (at, self.counter, kind, what))
        self.counter += 1

    def ticks(self, seconds: float) -> float:
        """Whole ticks, by exact arithmetic, where the problem counts in them."""
        if not self.p.ticks_per_s:
            return seconds
        return float(round(Fraction(seconds) * Fraction(self.p.ticks_per_s)))

    def give(self, now: float, d: int) -> None:
        """An idle device starts the head of its queue."""
        if not self.busy[d] and self.queue[d]:
            self.busy[d] = True
            self.due(now, "granted", self.queue[d].popleft())

    def run(self) -> QueueOutcome:
        for i in range(self.p.n):
            if self.missing[i] == 0:
                self.due(0.0, "ready", i)
        while self.heap:
            now, _, kind, what = heapq.heappop(self.heap)
            getattr(self, kind)(now, what)
        return QueueOutcome(self.start, self.end, max(self.end))

    def ready(self, now: float, i: int) -> None:
        self.queue[self.place[i]].append(i)
        self.give(now, self.place[i])

    def granted(self, now: float, i: int) -> None:
        self.start[i] = now
        self.due(now + self.ticks(float(self.p.compute_s[i, self.place[i]])), "ended", i)

    def ended(self, now: float, i: int) -> None:
        self.end[i] = now
        self.busy[self.place[i]] = False
        self.due(now, "released", self.place[i])
        self.due(now, "finished", i)

    def released(self, now: float, d: int) -> None:
        self.give(now, d)

    def finished(self, now: float, i: int) -> None:
        for e, (producer, k, j) in enumerate(self.edges):
            if producer == i:
                a, b = self.place[i], self.place[j]
                rate = float(self.p.seconds_per_byte[a, b])
                took = float(self.p.latency_s[a, b]) + float(self.p.tensor_bytes[k]) * rate
                self.due(now + (self.ticks(took) if a != b else 0.0), "arrived", e)

    def arrived(self, now: float, e: int) -> None:
        self.due(now, "handed", e)

    def handed(self, now: float, e: int) -> None:
        j = self.edges[e][2]
        self.missing[j] -= 1
        if self.missing[j] == 0:
            self.due(now, "ready", j)


def placements(problem: OperatorProblem, rng: np.random.Generator, count: int) -> list[list[int]]:
    """One device, devices in turn, and random ones."""
    turn = (np.arange(problem.n) % problem.m).tolist()
    drawn = [rng.integers(0, problem.m, problem.n).tolist() for _ in range(count)]
    return [[0] * problem.n, turn, *drawn]
