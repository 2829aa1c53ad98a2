"""Lists that choose among ready operators: a slow reference, and published values."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from placewright.operators.conformance import random_problem
from placewright.operators.judge import judge
from placewright.operators.planners.lists.ready import (
    BIL,
    DLS,
    ETF,
    MAX_MIN,
    MIN_MIN,
    READY_LISTS,
    SUFFERAGE,
    ReadyScheduler,
)
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context
from tests.operators.planners.test_heft import paper


class Slow:
    """Each planner as its paper says it, in plain Python, for any problem without memory limits."""

    def __init__(self, problem: OperatorProblem) -> None:
        self.p = problem
        self.place, self.end = [-1] * problem.n, [0.0] * problem.n
        self.free = [0.0] * problem.m
        self.group = problem.colocation.tolist()
        edges = [
            (int(problem.tensor_producer[k]), j, k)
            for k in range(problem.t)
            for j in problem.consumers[slice(*problem.consumer_offsets[k : k + 2])].tolist()
        ]
        self.reads = [[(a, k) for a, b, k in edges if b == i] for i in range(problem.n)]
        self.feeds = [[(b, k) for a, b, k in edges if a == i] for i in range(problem.n)]
        self.work = [[self.time(i, d) for d in range(problem.m)] for i in range(problem.n)]
        self.mean = [np.mean([w for w in row if w < inf]) for row in self.work]

    def time(self, i: int, d: int) -> float:
        """On a device that the whole group may use."""
        mates = [j for j in range(self.p.n) if self.group[j] == self.group[i]]
        pins = [int(self.p.pinned[j]) for j in mates]
        may = all(self.p.compute_s[j, d] < inf for j in mates) and all(x in (-1, d) for x in pins)
        return float(self.p.compute_s[i, d]) if may else inf

    def move(self, k: int, a: int, b: int) -> float:
        """Seconds of a tensor between two devices."""
        if a == b:
            return 0.0
        if self.p.channel[a, b] < 0:
            return inf
        rate = self.p.tensor_bytes[k] * self.p.seconds_per_byte[a, b]
        return float(self.p.latency_s[a, b] + rate)

    def level(self, i: int) -> float:
        """Static level."""
        return self.mean[i] + max((self.level(j) for j, _ in self.feeds[i]), default=0.0)

    def imaginary(self, i: int, d: int) -> float:
        """Basic imaginary level."""
        tail = max(
            (
                min(self.move(k, d, q) + self.imaginary(j, q) for q in range(self.p.m))
                for j, k in self.feeds[i]
            ),
            default=0.0,
        )
        return self.work[i][d] + tail

    def start(self, i: int, d: int) -> float:
        """When an operator could start on a device, infinity where it may not go."""
        mates = [self.place[j] for j in range(self.p.n) if self.group[j] == self.group[i]]
        if self.work[i][d] == inf or any(x not in (-1, d) for x in mates):
            return inf
        ways = [self.end[a] + self.move(k, self.place[a], d) for a, k in self.reads[i]]
        return max([self.free[d], *ways])

    def choose(self, planner: ReadyScheduler, ready: list[int]) -> tuple[int, int]:
        """The next operator and its device."""
        devices = range(self.p.m)
        start = {i: [self.start(i, d) for d in devices] for i in ready}
        finish = {i: [start[i][d] + self.work[i][d] for d in devices] for i in ready}
        if planner is BIL:
            levels = {i: [start[i][d] + self.imaginary(i, d) for d in devices] for i in ready}
            some = {i: sorted(x for x in levels[i] if x < inf) for i in ready}
            key = {i: some[i][min(len(ready), len(some[i])) - 1] for i in ready}
            crowd = max(len(ready) / self.p.m - 1, 0)
            i = max(ready, key=lambda i: (key[i], self.level(i), -i))
            rows = [levels[i][d] + crowd * self.work[i][d] for d in devices]
            return i, int(np.argmin(np.where(np.isfinite(levels[i]), rows, inf)))
        if planner is DLS:  # the largest dynamic level over all pairs
            value = {
                i: max(
                    self.level(i) - start[i][d] + self.mean[i] - self.work[i][d] for d in devices
                )
                for i in ready
            }
        elif planner is ETF:
            value = {i: -min(start[i]) for i in ready}
        elif planner is SUFFERAGE:
            value = {i: float(np.diff(sorted([*finish[i], inf])[:2])[0]) for i in ready}
        else:
            sign = -1 if planner is MIN_MIN else 1
            value = {i: sign * min(finish[i]) for i in ready}
        i = max(ready, key=lambda i: (value[i], self.level(i), -i))
        row = start[i] if planner is ETF else finish[i]
        return i, int(np.argmin(row))

    def run(self, planner: ReadyScheduler) -> list[int]:
        """The device of every operator."""
        while -1 in self.place:
            ready = [
                i
                for i in range(self.p.n)
                if self.place[i] < 0 and all(self.place[a] >= 0 for a, _ in self.reads[i])
            ]
            i, d = self.choose(planner, ready)
            begin = self.start(i, d)
            self.place[i], self.end[i] = d, begin + self.work[i][d]
            self.free[d] = self.end[i]
        return self.place


@pytest.mark.parametrize("planner", READY_LISTS, ids=lambda planner: planner.name)
def test_it_equals_the_slow_reference(planner: ReadyScheduler) -> None:
    """On random problems with groups, pins and refused devices, without memory limits."""
    compared = 0
    for seed in range(40):
        problem = random_problem(seed, links="free")
        problem = problem.replace(memory_bytes=np.full(problem.m, np.inf))
        if not (problem.channel + 2 * np.eye(problem.m) >= 0).all():
            continue  # a device that cannot be reached: the kernel gives up, the reference not
        plan = planner(problem, Context())
        slow = Slow(problem)
        assert plan.placement.tolist() == slow.run(planner)
        assert judge(problem, plan).value == pytest.approx(max(slow.end), rel=1e-12)
        compared += 1
    assert compared > 10


def test_published_length_of_dls() -> None:
    """On figure 2 of Topcuoglu et al. 2002, whose text has 91 for DLS."""
    assert judge(paper(), DLS(paper(), Context())).value == 91


def test_max_min_starts_the_long_operator_first() -> None:
    """Where min-min leaves it to the end: two short and a long one on two devices alike."""
    from placewright.operators.conformance import tiny

    problem = tiny([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]], [], links="free")
    assert judge(problem, MIN_MIN(problem, Context())).value == 3.0
    assert judge(problem, MAX_MIN(problem, Context())).value == 2.0
