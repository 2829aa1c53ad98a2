"""Exact optima of short windows, and the bound that they give together.

Requests are cut into windows of a few successive arrivals. What is best for a window alone, with
all servers free and everything known, is found by CP-SAT. A policy serves each window's requests
beside those of the others, so that the sum of the windows' optima is an upper bound for the whole
stream. A stream of one window has its optimum as bound.

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
from typing import Any

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.requests.problem import RequestProblem, noise_factors
from placewright.solvers.programs import require, run_cp_sat

SIZE = 8
"""Requests of a window."""

MOST_REQUESTS = 160
"""Requests of a stream, beyond which the windows' bound is not computed."""

MICROSECONDS = 1e6
UNITS = 1_000_000
"""Of accuracy 1; accuracies are rounded up, but for `ROUNDING`."""

ROUNDING = 1e-10

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
    return min(simple, answer.bound / UNITS + len(part) * ROUNDING)


class _Window:
    """The model of one window."""

    def __init__(self, problem: RequestProblem, part: IntArray) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.part, self.model = problem, part, cp_model.CpModel()
        s, service = problem.stream, problem.service
        start_s = float(s.arrival_s[part[0]])
        self.arrival = np.floor((s.arrival_s[part] - start_s) * MICROSECONDS).astype(np.int64)
        self.due = np.ceil((s.due_s[part] - start_s) * MICROSECONDS).astype(np.int64)
        self.family, self.floor = s.family[part], s.min_accuracy[part]
        least = float(noise_factors(problem).min()) if service.noise else 1.0
        table_s: FloatArray = service.latency_s * least + service.round_trip_s[:, None, None]
        if len(part) < len(s):  # requests of other windows may fill a batch
            table_s = np.minimum.accumulate(table_s[:, :, ::-1], axis=2)[:, :, ::-1]
        self.table = np.where(np.isfinite(table_s), np.floor(table_s * MICROSECONDS), -1)
        self.horizon = int(self.due.max() + 1)
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
