"""Why a request was served as it was: its variant, server, slack, and what else it could get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import UnknownNameError
from placewright.report.text import plain_table, seconds
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.problem import RequestProblem


@dataclass(frozen=True, slots=True)
class RequestExplanation:
    """One request of a simulated stream; ``str()`` of it is for a terminal."""

    facts: dict[str, Any]
    options: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return self.facts | {"options": list(self.options)}

    def __str__(self) -> str:
        f = self.facts
        what = (
            f"request {f['request']} ({f['family']}): arrived at {f['arrival_s']:.6f} s, "
            f"deadline {seconds(f['deadline_s'])} later, minimum accuracy {f['min_accuracy']:g}\n"
        )
        if f["server"] is None:
            what += "refused or never answered"
        else:
            what += (
                f"{f['variant']} on {f['server']} in a batch of {f['batch']}: waited "
                f"{seconds(f['waited_s'])}, took {seconds(f['took_s'])}, "
                f"slack {seconds(f['slack_s']) if f['slack_s'] >= 0 else 'none, late'}"
            )
        rows = [
            (o["server"], o["variant"], f"{o['accuracy']:.4f}", seconds(o["alone_s"]), o["verdict"])
            for o in self.options
        ]
        table = plain_table(("server", "variant", "accuracy", "alone", ""), rows, "  rr ")
        return f"{what}\nwhat it could have had, alone on an idle server:\n{table}"


MOST_OPTIONS = 24

MOST_DIGITS = 18
"""Of a request's number: Python refuses to read some thousands."""


def explain(problem: RequestProblem, plan: RequestPlan, name: str) -> RequestExplanation:
    """Explain a request by its number.

    Raises `UnknownNameError`: there is no such request.
    """
    p, s = problem, problem.service
    if not name.isdecimal() or len(name) > MOST_DIGITS or int(name) >= len(p.stream):
        raise UnknownNameError("request", name, [f"0 to {len(p.stream) - 1}"], where=p.name)
    k, a = int(name), judge(problem, plan).answers
    answered, i, v = a.server[k] >= 0, int(a.server[k]), int(a.variant[k])
    facts: dict[str, Any] = {
        "request": k,
        "family": s.family_names[int(p.stream.family[k])],
        "arrival_s": float(p.stream.arrival_s[k]),
        "deadline_s": float(p.stream.deadline_s[k]),
        "min_accuracy": float(p.stream.min_accuracy[k]),
        "server": s.server_names[i] if answered else None,
        "variant": s.variant_names[v] if answered else None,
        "batch": int(a.batch[k]),
    }
    if answered:
        facts |= {
            "waited_s": float(a.start_s[k] - p.stream.arrival_s[k]),
            "took_s": float(a.end_s[k] - a.start_s[k]),
            "slack_s": float(p.stream.due_s[k] - a.end_s[k]),
        }
    return RequestExplanation(facts, tuple(_options(p, k))[:MOST_OPTIONS])


def _options(p: RequestProblem, k: int) -> list[dict[str, Any]]:
    s = p.service
    found = []
    for i in s.kinds().tolist():
        for v in np.flatnonzero(s.family == p.stream.family[k]).tolist():
            alone_s = float(s.latency_s[i, v, 1] + s.round_trip_s[i])
            verdict = "fits"
            if s.accuracy[v] < p.stream.min_accuracy[k]:
                verdict = "below its minimum accuracy"
            elif alone_s > p.stream.deadline_s[k]:
                verdict = "too slow"
            entry = {"server": s.server_names[i], "variant": s.variant_names[v], "verdict": verdict}
            found.append(entry | {"accuracy": float(s.accuracy[v]), "alone_s": alone_s})
    return sorted(found, key=lambda o: (o["verdict"] != "fits", -o["accuracy"], o["alone_s"]))
