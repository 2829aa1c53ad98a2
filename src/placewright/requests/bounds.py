"""What no policy can beat, clairvoyant ones included.

**fluid**. Time is cut into windows. A request may be served in any window that overlaps its
interval from arrival to deadline, in parts, on any server, and costs the least seconds per request
of any batch that its deadline allows; each server gives each window its length. Every schedule
satisfies this: a batch of b requests that takes L has L <= the deadline of each of them, and L / b
seconds can be charged to each. Seconds in a window are at most servers x window. So the maximum of

    sum of accuracy x    subject to    sum over windows, servers, variants of x <= requests,
                                       sum of seconds x <= servers x window

is an upper bound on the sum of accuracies of successes. Requests are grouped by windows, family,
minimum accuracy and range of deadlines (with the range's upper end, which can only loosen). With
noise, a batch may keep a deadline if it does so at three standard deviations below its table's
time, and is charged the table's time, which is the mean.

**lagrangian**. Whole batches on each server, requests at prices: see
`placewright.requests.lagrangian`.

**alone**. Each request gets the most accurate variant that keeps its deadline on an idle server.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from itertools import product

import numpy as np

from placewright.errors import MissingDependencyError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import BoundContext
from placewright.requests.lagrangian import lagrangian_bounds
from placewright.requests.problem import RequestProblem
from placewright.solvers.programs import LinearProgram

WINDOWS = 400
"""Windows in a stream, unless the longest deadline is longer than one."""

RANGES = 12
"""Ranges of deadlines."""

ROUNDING = 1e-9


def bounds(problem: RequestProblem) -> dict[str, float]:
    """Quick bounds on the effective accuracy by name."""
    return {"alone": alone(problem)}


def refined_bounds(
    problem: RequestProblem, known: BoundContext | None = None
) -> Iterator[tuple[str, float]]:
    """The fluid program's bound, where HiGHS is installed, and the Lagrangian one as it falls."""
    yield from fluid_bounds(problem)
    limit_s = math.inf if known is None else known.deadline_s
    for found in lagrangian_bounds(problem, alone_each(problem), limit_s):
        yield "lagrangian", found


def fluid_bounds(problem: RequestProblem) -> Iterator[tuple[str, float]]:
    """The fluid program's bound, where HiGHS is installed: a second for 800,000 requests."""
    with suppress(MissingDependencyError):
        yield "fluid", fluid(problem)


def alone(problem: RequestProblem) -> float:
    """Mean over requests of the best accuracy that an idle server gives in time."""
    return float(alone_each(problem).mean())


def alone_each(problem: RequestProblem) -> FloatArray:
    """Shape (requests,): the best accuracy that an idle server gives each request in time."""
    p, s = problem, problem.service
    least_s = (s.latency_s[:, :, 1:].min(axis=2) + s.round_trip_s[:, None]).min(axis=0)
    least_s = least_s * (1.0 - 3.0 * s.noise)
    best = np.zeros(len(p.stream))
    for v in range(s.variants):
        good = (p.stream.family == s.family[v]) & (s.accuracy[v] >= p.stream.min_accuracy)
        good &= p.stream.deadline_s >= least_s[v] * (1 - ROUNDING)
        best = np.maximum(best, np.where(good, s.accuracy[v], 0.0))
    return best


def window_s(problem: RequestProblem) -> float:
    """The longest deadline, or a 400th of the duration if that is longer."""
    return max(float(problem.stream.deadline_s.max()), problem.duration_s / WINDOWS)


def fluid(problem: RequestProblem, *, success: bool = False) -> float:
    """The fluid program's bound.

    Raises `MissingDependencyError`: HiGHS is not installed.

    `success`: bound the success rate in place of the effective accuracy.
    """
    return _Program(problem, success).solve()


class _Program:
    """Columns: a group of requests, the window it is served in, a kind of server, a variant."""

    def __init__(self, problem: RequestProblem, success: bool) -> None:
        self.problem, self.window, self.success = problem, window_s(problem), success
        s = problem.service
        self.tables_s = s.latency_s + s.round_trip_s[:, None, None]
        flat = self.tables_s.reshape(s.servers, -1)
        _, first, self.servers = np.unique(flat, axis=0, return_index=True, return_counts=True)
        self.tables_s = self.tables_s[first]
        self.windows = max(1, int(np.ceil(problem.duration_s / self.window - 1e-9)))

    def solve(self) -> float:
        """Maximum over what is served where and when, from the multipliers of the answer."""
        count, first, last, family, floor, cost_s = self._groups()
        s, kinds = self.problem.service, len(self.servers)
        program = LinearProgram(stoppable=False)
        requests = program.rows(len(count), high=count)
        room = program.rows((int(last.max()) + 1, kinds), high=self.servers * self.window)
        most = [np.zeros(0)]
        for k, v in product(range(kinds), range(s.variants)):
            able = (family == s.family[v]) & (floor <= s.accuracy[v])
            able &= np.isfinite(cost_s[:, k, v])
            # A group may be served in any window from that of its arrival to that of its deadline.
            for shift in range(int((last - first).max()) + 1):
                group = np.flatnonzero(able & (first + shift <= last))
                gain = 1.0 if self.success else float(s.accuracy[v])
                served = program.columns(len(group), cost=-gain)
                program.enter(requests[group], served, 1.0)
                program.enter(room[first[group] + shift, k], served, cost_s[group, k, v])
                most.append(count[group].astype(np.float64))
        if not program.size.columns:
            return 0.0
        found = program.solve()
        assert found.multipliers is not None, "nothing served is always an answer"
        best = -program.proved(found.multipliers, np.concatenate(most))[0]
        return best / len(self.problem.stream) * (1.0 + ROUNDING)

    def _groups(self) -> tuple[IntArray, IntArray, IntArray, IntArray, FloatArray, FloatArray]:
        """Requests that the program need not tell apart, and what each costs where."""
        stream = self.problem.stream
        first = np.minimum((stream.arrival_s / self.window).astype(np.int64), self.windows - 1)
        last = np.maximum((stream.due_s / self.window).astype(np.int64), first)
        edges = np.unique(np.quantile(stream.deadline_s, np.arange(1, RANGES + 1) / RANGES))
        within = np.minimum(np.searchsorted(edges, stream.deadline_s), len(edges) - 1)
        floors, level = np.unique(stream.min_accuracy, return_inverse=True)
        if self._equal_deadlines():
            last = first + 1  # as published: any part of the window that follows
        key = np.stack([first, last, stream.family, level, within])
        groups, count = np.unique(key, axis=1, return_counts=True)
        size = np.arange(1, self.tables_s.shape[2])
        per = self.tables_s[:, :, 1:] / size
        cost_s = np.empty((len(edges), *per.shape[:2]))
        for k, limit_s in enumerate(edges.tolist()):
            fits = self.tables_s[:, :, 1:] <= limit_s * (1 + ROUNDING) * self._slowest()
            cost_s[k] = np.where(fits, per, np.inf).min(axis=2)
        return count, groups[0], groups[1], groups[2], floors[groups[3]], cost_s[groups[4]]

    def _equal_deadlines(self) -> bool:
        deadline_s = self.problem.stream.deadline_s
        return bool(deadline_s.min() == deadline_s.max())

    def _slowest(self) -> float:
        """With noise a batch may be faster than its table says, by up to three deviations."""
        return 1.0 / (1.0 - 3.0 * self.problem.service.noise)
