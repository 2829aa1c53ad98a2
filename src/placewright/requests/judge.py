"""The judge of wing 4: plays the stream against the plan's policy and counts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from placewright.io.stored import write_file
from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.report.trace import Trace
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import start
from placewright.requests.problem import RequestProblem
from placewright.requests.simulation import Answers, simulate

SHOWN_SPANS = 20_000
"""Batches in a timeline; the first ones of longer streams."""


@dataclass(frozen=True, eq=False)
class RequestJudgement:
    """What a policy reached on a stream.

    A request succeeds when its batch ends by its deadline with a variant that reaches its minimum
    accuracy. Late, refused and unanswered requests are failures alike.
    """

    problem: RequestProblem
    plan: RequestPlan
    answers: Answers
    feasible: bool = True
    violation: str = ""
    violation_size: float = 0.0

    @cached_property
    def succeeded(self) -> BoolArray:
        """Shape (requests,)."""
        return self.answers.succeeded(self.problem)

    @cached_property
    def earned(self) -> FloatArray:
        """Shape (requests,): accuracy of each answer, 0 for failures."""
        accuracy = self.problem.service.accuracy[self.answers.variant]
        return np.where(self.succeeded, accuracy, 0.0)

    @property
    def value(self) -> float:
        """Effective accuracy: the mean over all requests, failures 0."""
        return float(self.earned.mean())

    @property
    def success_rate(self) -> float:
        """Share of all requests that succeeded."""
        return float(self.succeeded.mean())

    @property
    def accuracy_of_successes(self) -> float:
        """Mean accuracy of the requests that succeeded; 0 where none did."""
        return self.value / self.success_rate if self.success_rate > 0 else 0.0

    @property
    def busy_s(self) -> FloatArray:
        """Shape (servers,): seconds in batches."""
        first = self._first_of_batch()
        a = self.answers
        took = a.end_s[first] - a.start_s[first]
        used = np.bincount(a.server[first], took, self.problem.service.servers)
        return used.astype(np.float64)

    @property
    def metrics(self) -> Mapping[str, tuple[float, str]]:
        """Success, latency and use, with units."""
        p, a = self.problem, self.answers
        answered = a.server >= 0
        latency_s = (a.end_s - p.stream.arrival_s)[answered]
        p99_s = float(np.quantile(latency_s, 0.99)) if len(latency_s) else 0.0
        refused = int(np.isfinite(a.refused_s).sum())
        lost = len(p.stream) - int(answered.sum()) - refused
        last_s = max(p.duration_s, float(a.end_s[answered].max(initial=0.0)))
        return {
            "success rate": (self.success_rate, ""),
            "accuracy of successes": (self.accuracy_of_successes, ""),
            "late": (float((answered & ~self.succeeded).sum()), ""),
            "refused": (float(refused), ""),
            **({"lost": (float(lost), "")} if lost else {}),
            "p99 latency": (p99_s, "s"),
            "mean batch": (float(answered.sum() / max(1, a.number.max() + 1)), ""),
            "utilisation": (float(self.busy_s.sum() / (p.service.servers * last_s)), ""),
        }

    def trace(self) -> Trace:
        """Which server ran which variant when."""
        first = self._first_of_batch()[:SHOWN_SPANS]
        s, a = self.problem.service, self.answers
        return Trace(
            s.server_names,
            s.servers,
            s.variant_names,
            a.server[first],
            a.variant[first],
            a.start_s[first],
            a.end_s[first],
            title="simulated batches",
        )

    def summary_json(self) -> dict[str, Any]:
        """Counts and rates by the names of ``serving/README``, per family too."""
        p, s = self.problem, self.problem.service
        known = {name.replace(" ", "_"): value for name, (value, _) in self.metrics.items()}
        families = {}
        for f, name in enumerate(s.family_names):
            mine = p.stream.family == f
            if mine.any():
                families[name] = {
                    "requests": int(mine.sum()),
                    "success_rate": float(self.succeeded[mine].mean()),
                    "effective_accuracy": float(self.earned[mine].mean()),
                }
        counts = {name: int(known.pop(name, 0.0)) for name in ("late", "refused", "lost")}
        return {
            "requests": len(p.stream),
            "effective_accuracy": self.value,
            "violation_rate": 1.0 - self.success_rate,
            **known,
            **counts,
            "families": families,
            "servers": {
                name: {"busy_s": float(busy)}
                for name, busy in zip(s.server_names, self.busy_s, strict=True)
            },
        }

    def write_log(self, path: str | Path) -> Path:
        """Write one JSON object a line for each request that was answered or refused."""
        return write_file(path, "".join(f"{line}\n" for line in self._log()))

    def _log(self) -> Any:
        p, a, s = self.problem, self.answers, self.problem.service
        due, earned = p.stream.due_s.tolist(), self.earned.tolist()
        rows = zip(
            a.server.tolist(),
            a.variant.tolist(),
            a.batch.tolist(),
            a.start_s.tolist(),
            a.end_s.tolist(),
            strict=True,
        )
        for number, (server, variant, batch, start_s, end_s) in enumerate(rows):
            line: dict[str, Any] = {"request": number, "server": None}
            if server >= 0:
                line |= {
                    "server": s.server_names[server],
                    "variant": s.variant_names[variant],
                    "batch": batch,
                    "start_s": start_s,
                    "end_s": end_s,
                }
            elif not np.isfinite(a.refused_s[number]):
                continue  # never answered: counted as lost
            yield json.dumps(line | {"due_s": due[number], "accuracy": earned[number]})

    def _first_of_batch(self) -> Any:
        """One request of each batch, in order of dispatch."""
        answered = np.flatnonzero(self.answers.number >= 0)
        _, first = np.unique(self.answers.number[answered], return_index=True)
        return answered[first]


def judge(
    problem: RequestProblem, plan: RequestPlan, most_failures: float = math.inf
) -> RequestJudgement:
    """Play the problem's stream against the plan's policy, up to so many failures."""
    answers = simulate(problem, start(plan, problem.service), most_failures)
    return RequestJudgement(problem, plan, answers)
