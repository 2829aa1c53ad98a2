"""m-ETF and m-SCT equal a slow reference that looks through all pairs at every step."""

from __future__ import annotations

from math import inf

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.planners.lists.insertion import Rules, Setup, mean_upward_rank, set_up
from placewright.operators.planners.lists.ready import (
    LEAST,
    ReadyRule,
    favourite_children,
    ready_rule,
    schedule,
)
from placewright.operators.problem import OperatorProblem


def rank_of(setup: Setup) -> FloatArray:
    """As m-ETF ranks."""
    return mean_upward_rank(
        setup.costs, setup.mean_compute_s, setup.mean_latency_s, setup.mean_seconds_per_byte
    )


def earliest(rank: FloatArray, favourite: IntArray, m: int) -> ReadyRule:
    """The least start, with outputs in memory."""
    n = len(rank)
    return ready_rule(
        rank,
        np.zeros((n, m)),
        offset_s=np.zeros(n),
        select=LEAST,
        soonest=True,
        holds_outputs=True,
        favourite=favourite,
    )


class Slow:
    """Plain Python, in the words of `lists.insertion.candidates`."""

    def __init__(self, problem: OperatorProblem, setup: Setup, rules: Rules) -> None:
        self.p, self.c, self.r = problem, setup.costs, rules
        self.chosen = [-1] * len(rules.group_bytes)
        self.used = [0.0] * problem.m
        self.place, self.start, self.end = [-1] * problem.n, [0.0] * problem.n, [0.0] * problem.n
        self.free, self.last = [0.0] * problem.m, [-1] * problem.m

    def outputs(self, i: int) -> list[int]:
        """Tensors that an operator makes."""
        return np.flatnonzero(self.p.tensor_producer == i).tolist()

    def open(self, i: int) -> list[int]:
        """Devices that an operator may go to now."""
        only = self.chosen[self.r.group[i]]
        if only >= 0:
            return [only]
        own = self.r.group_bytes[self.r.group[i]]
        for k in self.outputs(i):
            own += self.c.home_bytes[k]
        allowed = np.flatnonzero(self.r.allowed[i]).tolist()
        return [d for d in allowed if self.used[d] + own <= self.r.budget_bytes[d]] or allowed

    def arrival(self, i: int, d: int) -> float:
        """When the inputs of an operator are on a device."""
        latest = 0.0
        for k in range(self.p.t):
            lo, hi = self.p.consumer_offsets[k : k + 2]
            if i not in self.p.consumers[lo:hi]:
                continue
            a = int(self.p.tensor_producer[k])
            source = self.place[a]
            way = 0.0 if source == d else inf
            if source != d and self.p.channel[source, d] >= 0:
                rate = self.p.tensor_bytes[k] * self.p.seconds_per_byte[source, d]
                way = float(self.p.latency_s[source, d] + rate)
            latest = max(latest, self.end[a] + way)
        return latest

    def run(self, rank: FloatArray, favourite: list[int]) -> list[int]:
        """Every step looks at all pairs."""
        before = [set[int]() for _ in range(self.p.n)]
        for k in range(self.p.t):
            for j in self.p.consumers[slice(*self.p.consumer_offsets[k : k + 2])].tolist():
                before[j].add(int(self.p.tensor_producer[k]))
        while True:
            ready = [
                i
                for i in range(self.p.n)
                if self.place[i] < 0 and all(self.place[a] >= 0 for a in before[i])
            ]
            pairs = []
            for i in ready:
                for d in self.open(i):
                    start = max(self.free[d], self.arrival(i, d))
                    owner = favourite[self.last[d]] if self.last[d] >= 0 else -1
                    taken = owner in ready and owner != i
                    pairs.append((taken, start, -rank[i], i, d))
            pairs = [x for x in pairs if x[1] < inf]
            if not pairs:
                return self.place
            self.put(*min(pairs)[3:], min(pairs)[1])

    def put(self, i: int, d: int, start: float) -> None:
        """Operator i on device d."""
        self.place[i], self.start[i] = d, start
        self.end[i] = start + float(self.p.compute_s[i, d])
        self.free[d], self.last[d] = self.end[i], i
        g = self.r.group[i]
        if self.chosen[g] < 0:
            self.chosen[g] = d
            self.used[d] += self.r.group_bytes[g]
        for k in self.outputs(i):
            self.used[d] += self.c.home_bytes[k]


def test_equals_the_slow_reference() -> None:
    """Groups, pins, refusals, missing links, budgets that run out, favourites; to the last bit."""
    stopped = tight = 0
    for seed in range(96):
        rng = np.random.default_rng(seed)
        problem = random_problem(seed, most_operators=30)
        if seed % 3 == 0:
            cut = rng.random(problem.channel.shape) < 0.3
            problem = problem.replace(
                channel=np.where(cut, -1, problem.channel),
                seconds_per_byte=np.where(cut, np.inf, problem.seconds_per_byte),
            )
        setup = set_up(problem)
        made = np.bincount(problem.tensor_producer, setup.costs.home_bytes, problem.n)
        share = rng.choice([0.2, 0.5, 1.0, 9.0], problem.m)
        budget = share * (problem.resident_bytes.sum() + made.sum()) / problem.m
        rules, rank = setup.rules(budget), rank_of(setup)
        if seed % 4 == 0:  # many ties
            rank = np.round(rank)
        favourite = favourite_children(setup) if seed % 2 else np.full(problem.n, -1)
        slow = Slow(problem, setup, rules)
        wanted = slow.run(rank, favourite.tolist())
        place, start_s, end_s = schedule(setup.costs, rules, earliest(rank, favourite, problem.m))
        assert place.tolist() == wanted, seed
        assert start_s.tolist() == slow.start
        assert end_s.tolist() == slow.end
        stopped += min(wanted) < 0
        tight += any(u > b for u, b in zip(slow.used, budget, strict=True))
    assert min(stopped, tight) > 10


def test_many_at_once() -> None:
    """Independent operators on like devices are dealt out evenly, all ready from the start."""
    n, m = 20_000, 4
    problem = tiny([[1.0] * m] * n)
    setup = set_up(problem)
    none = np.full(n, -1)
    rules, rule = setup.rules(np.full(m, inf)), earliest(np.ones(n), none, m)
    place, start_s, _ = schedule(setup.costs, rules, rule)
    assert place.tolist() == [i % m for i in range(n)]
    assert start_s.tolist() == [float(i // m) for i in range(n)]
