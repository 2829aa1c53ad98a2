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
noise, a batch may keep a deadline if it does so at its least time, and is charged the table's time,
which is the mean: the bound is on the expectation.

**lagrangian**. Whole batches on each server, requests at prices: see
`placewright.requests.lagrangian`.

**alone**. Each request gets the most accurate variant that keeps its deadline on an idle server.

**windows**. Exact optima of short windows. Requests are cut into windows of a few successive
arrivals. What is best for a window alone, with all servers free and everything known, is found by
CP-SAT. A policy serves each window's requests beside those of the others, so that the sum of the
windows' optima is an upper bound for the whole stream. A stream of one window has its optimum as
bound.

Variables of a window: for each request h, the batch whose first arrival it is, if any: one of the
(server, variant, size) that run it, as an optional interval on the server; which others belong to
it; and of those, which are answered in time. Members of a batch have arrived before it starts. They
may be late, for a larger batch may take less time than a smaller one; in a window that is part of
a stream, requests of other windows may fill a batch.

Time is in microseconds, rounded so that nothing becomes harder. Loading of variants and sending of
inputs are left out and each batch has the least noise of any: this can only loosen the bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np

from placewright.errors import MissingDependencyError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import BoundContext
from placewright.requests.lagrangian import lagrangian_bounds
from placewright.requests.problem import RequestProblem, noise_factors
from placewright.solvers.programs import LinearProgram, require, run_cp_sat

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
    """The fluid program's bound, where HiGHS is installed, and the Lagrangian one as it falls.

    For ``auto`` only the first, which takes a second for 800,000 requests. With noise both are on
    the expectation: where the best plan, by the luck of this stream's noise, has more than one of
    them, the bound of each request alone stands in its place.
    """
    best = -math.inf if known is None or not problem.service.noise else known.value
    with suppress(MissingDependencyError):
        found = fluid(problem)
        yield "fluid", found if found > best else alone(problem)
    if known is not None and known.auto:
        return
    limit_s = math.inf if known is None else known.deadline_s
    for found in lagrangian_bounds(problem, alone_each(problem), limit_s):
        if found <= best:
            yield "lagrangian", alone(problem)
            return
        yield "lagrangian", found


def alone(problem: RequestProblem) -> float:
    """Mean over requests of the best accuracy that an idle server gives in time."""
    return float(alone_each(problem).mean())


def alone_each(problem: RequestProblem) -> FloatArray:
    """Shape (requests,): the best accuracy that an idle server gives each request in time."""
    p, s = problem, problem.service
    least_s = (s.latency_s[:, :, 1:].min(axis=2) + s.round_trip_s[:, None]).min(axis=0)
    least_s = least_s * s.least_factor
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
        """With noise a batch may be faster than its table says."""
        return 1.0 / self.problem.service.least_factor


SIZE = 8
"""Requests of a window."""

MOST_REQUESTS = 160
"""Requests of a stream, beyond which the windows' bound is not computed."""

MICROSECONDS = 1e6

LONGEST_S = 2.0**55 / MICROSECONDS
"""Until the latest deadline, a thousand years: the solver has 64 bits."""

UNITS = 1_000_000
"""Of accuracy 1; accuracies are rounded up, but for `ACCURACY_ROUNDING`."""

ACCURACY_ROUNDING = 1e-10

WORK_S = 2.0
"""CP-SAT's deterministic time for a window; where it ends early, its bound counts."""


def windows(problem: RequestProblem, deadline_s: float = np.inf, size: int = SIZE) -> float:
    """An upper bound on the effective accuracy: the mean of the windows' optima.

    Raises `MissingDependencyError`: OR-tools is not installed.

    Parameters
    ----------
    deadline_s
        ``time.perf_counter()`` value at which windows that are left count as all answered best.
    size
        Requests of a window; the optimum itself where it holds all of them.
    """
    require("ortools", "exact windows")
    n = len(problem.stream)
    parts = [np.arange(k, min(k + size, n)) for k in range(0, n, size)]
    return sum(_best(problem, part, deadline_s) for part in parts) / n


def _best(problem: RequestProblem, part: IntArray, deadline_s: float) -> float:
    """The most accuracy that the requests of `part` can have together, or a bound on it."""
    made = _Window(problem, part)
    simple = float(made.most.sum())
    if time.perf_counter() > deadline_s or simple == 0.0:
        return simple
    answer = run_cp_sat(made.model, seed=0, deadline_s=deadline_s, workers=1, work=WORK_S)
    if answer.values is None and not answer.bound:
        return simple
    return min(simple, answer.bound / UNITS + len(part) * ACCURACY_ROUNDING)


class _Window:
    """The model of one window."""

    def __init__(self, problem: RequestProblem, part: IntArray) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.part, self.model = problem, part, cp_model.CpModel()
        s, service = problem.stream, problem.service
        start_s = float(s.arrival_s[part[0]])
        self.arrival = np.floor((s.arrival_s[part] - start_s) * MICROSECONDS).astype(np.int64)
        left_s = np.minimum(s.due_s[part] - start_s, LONGEST_S)
        self.due = np.ceil(left_s * MICROSECONDS).astype(np.int64)
        self.family, self.floor = s.family[part], s.min_accuracy[part]
        least = float(noise_factors(problem).min()) if service.noise else 1.0
        table_s: FloatArray = service.latency_s * least + service.round_trip_s[:, None, None]
        if len(part) < len(s):  # requests of other windows may fill a batch
            table_s = np.minimum.accumulate(table_s[:, :, ::-1], axis=2)[:, :, ::-1]
        self.horizon = int(self.due.max() + 1)
        # What ends after every deadline does so by a microsecond: the solver has 64 bits.
        runs = np.minimum(np.floor(table_s * MICROSECONDS), self.horizon + 1)
        self.table = np.where(np.isfinite(table_s), runs, -1)
        self.most = self._alone()
        self._build()

    def _alone(self) -> FloatArray:
        """Shape (requests,): the most accuracy of each, on servers that have nothing else to do."""
        service, most = self.problem.service, np.zeros(len(self.part))
        runs = np.where(self.table[:, :, 1:] >= 0, self.table[:, :, 1:], np.inf).min(axis=(0, 2))
        for v in range(service.variants):
            good = (self.family == service.family[v]) & (self.floor <= service.accuracy[v])
            good &= self.arrival + runs[v] <= self.due
            most = np.maximum(most, np.where(good, service.accuracy[v], 0.0))
        return most

    def _build(self) -> None:
        m, n = self.model, len(self.part)
        self.intervals: list[list[Any]] = [[] for _ in self.problem.service.server_names]
        self.gains: list[Any] = []
        heads: list[list[Any]] = [[] for _ in range(n)]  # batches that each may belong to
        for h in range(n):
            members = [i for i in range(h, n) if self.family[i] == self.family[h]]
            member = {i: m.new_bool_var(f"m{h},{i}") for i in members}
            for i in members:
                heads[i].append(member[i])
            self._batch(h, member)
        for i in range(n):
            m.add_at_most_one(heads[i])
        for held in self.intervals:
            m.add_no_overlap(held)
        m.maximize(sum(self.gains))

    def _batch(self, h: int, member: dict[int, Any]) -> None:
        """The batch whose first arrival is h, or none."""
        m, service = self.model, self.problem.service
        start = m.new_int_var(int(self.arrival[h]), self.horizon, f"start{h}")
        end = m.new_int_var(0, self.horizon, f"end{h}")
        modes: list[Any] = []
        sizes: list[Any] = []
        of_variant: dict[int, list[Any]] = {}
        for v in np.flatnonzero(service.family == self.family[h]).tolist():
            own: list[Any] = []
            for k in range(service.servers):
                for b in range(1, min(len(member), service.max_batch) + 1):
                    took = int(self.table[k, v, b])
                    # Not run there, or it ends after every deadline.
                    if took < 0 or self.arrival[h] + took > self.horizon:
                        continue
                    used = m.new_bool_var(f"b{h},{k},{v},{b}")
                    self.intervals[k].append(
                        m.new_optional_interval_var(start, took, end, used, "")
                    )
                    own.append(used)
                    sizes.append(b * used)
            modes += own
            of_variant[v] = own
        m.add_at_most_one(modes)
        m.add(sum(member.values()) == sum(sizes))
        for i, belongs in member.items():
            # A batch has members only if its head is one, which is the earliest arrival.
            m.add_implication(belongs, member[h])
            m.add(start >= int(self.arrival[i])).only_enforce_if(belongs)
            self._earns(i, belongs, of_variant, end)

    def _earns(self, i: int, belongs: Any, of_variant: dict[int, list[Any]], end: Any) -> None:
        """The accuracy of request i, by variant, if its batch ends in time."""
        m, service = self.model, self.problem.service
        for v, own in of_variant.items():
            if service.accuracy[v] < self.floor[i] or not own:
                continue
            earns = m.new_bool_var("")
            m.add_implication(earns, belongs)
            m.add(sum(own) >= 1).only_enforce_if(earns)
            m.add(end <= int(self.due[i])).only_enforce_if(earns)
            self.gains.append(math.ceil(service.accuracy[v] * UNITS - 1e-4) * earns)
