"""`replay`: requests that have come, played again with every policy that ships.

A server learns so which policy it needs, and `explain` says why one was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context
from placewright.requests.judge import RequestJudgement, judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import listed
from placewright.requests.policies import POLICIES, specification
from placewright.requests.problem import RequestProblem
from placewright.requests.selection import BOLDER, SAFER

REPLAYED = ((500, 10), (1500, 6))
"""Latest rows on which all policies are replayed first, and how many others go on."""

BLOCKS, SURE = 10, 2.0
"""Parts of a window of which the noise of differences is told, and standard errors by which another
policy has to be better."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy, and what it reached on the requests for which it was chosen.

    Attributes
    ----------
    value
        Mean effective accuracy, and `success_worth` times the success rate.
    tried
        Policies.
    requests
        On which it was compared with others.
    before
        The value of the policy that decided before; ``None``: there was none.
    noise
        Standard error of the difference of the two.
    """

    plan: RequestPlan
    value: float
    success_rate: float
    effective_accuracy: float
    tried: int
    requests: int
    before: float | None = None
    noise: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For events and the live page."""
        found = {k: v for k, v in asdict(self).items() if k != "plan" and v is not None}
        numbers = {k: round(v, 5) if isinstance(v, float) else v for k, v in found.items()}
        return plan_json(self.plan) | numbers


def plan_json(plan: RequestPlan) -> dict[str, Any]:
    """A policy by name and parameters."""
    return {"policy": plan.policy, "parameters": dict(plan.parameters)}


def plan_text(plan: RequestPlan) -> str:
    """A policy as ``--policy`` takes it."""
    usual = POLICIES[plan.policy]()
    chosen = [(name, value) for name, value in plan.parameters if value != getattr(usual, name)]
    written = ", ".join(f"{name}={value}" for name, value in chosen)
    return f"{plan.policy}({written})" if written else plan.policy


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy beside another on the same requests.

    Attributes
    ----------
    value
        What an answer is worth to the user, in the mean.
    gain, noise
        Of the value above the other's, and its standard error.
    """

    judged: RequestJudgement
    value: float
    gain: float
    noise: float

    @property
    def clear(self) -> bool:
        """Whether it is better by more than `SURE` times the noise."""
        return self.gain > SURE * self.noise


def replay(window: RequestProblem, plan: RequestPlan, success_worth: float = 0.0) -> PolicyChoice:
    """`plan`, or another policy that is better on these requests by more than the noise.

    Parameters
    ----------
    window
        Requests that have come, with the latencies of now.
    plan
        What decided.
    """
    usual = specification(plan)  # of a plan that leaves out what is usual
    others = [each for each in candidates(window) if specification(each) != usual]
    tried, judged = len(others) + 1, dict[RequestPlan, RequestJudgement]()
    for requests, kept in REPLAYED:
        latest, before = last_requests(window, requests), next(iter(judged.values()), None)
        if before is None or len(latest.stream) > len(before.problem.stream):
            judged = _judged(latest, [plan, *others], success_worth)
        worth = {each: _worth(judged[each], success_worth).mean() for each in judged}
        others = sorted((each for each in judged if each != plan), key=lambda each: -worth[each])
        others = others[:kept]
    whole = len(judged[plan].problem.stream) == len(window.stream)
    plans = [plan, *others]
    own, *rest = compared(window, plans, success_worth, judged if whole else {})
    better = [each for each in rest if each.clear]
    best = max(better, key=lambda each: each.value, default=own)
    return PolicyChoice(
        best.judged.plan,
        best.value,
        best.judged.success_rate,
        best.judged.value,
        tried,
        len(window.stream),
        own.value,
        best.noise,
    )


def _judged(
    problem: RequestProblem, plans: Sequence[RequestPlan], success_worth: float
) -> dict[RequestPlan, RequestJudgement]:
    """The first of these plans, and those of which it is not seen early that they are no better.

    With more failures than that a plan would be worse than another if all its other answers were of
    the highest accuracy.
    """
    found, count = dict[RequestPlan, RequestJudgement](), len(problem.stream)
    best, highest = 0.0, float(problem.service.accuracy.max()) + success_worth
    for plan in plans:
        most = np.inf if not found else count * (1.0 - best / highest)
        each = judge(problem, plan, most)
        if count * (1.0 - each.success_rate) <= most:
            found[plan] = each
            best = max(best, float(_worth(each, success_worth).mean()))
    return found


def compared(
    problem: RequestProblem,
    plans: Sequence[RequestPlan],
    success_worth: float = 0.0,
    known: Mapping[RequestPlan, RequestJudgement] = MappingProxyType({}),
) -> Iterator[Comparison]:
    """Each of these on the problem's requests, beside the first of them.

    `known`: of some of them, on just these requests.
    """
    first: FloatArray | None = None
    for plan in plans:
        judged = known[plan] if plan in known else judge(problem, plan)
        worth = _worth(judged, success_worth)
        first = worth if first is None else first
        gain = worth - first
        # Means of parts of the stream: neighbouring requests wait for each other.
        parts = [float(part.mean()) for part in np.array_split(gain, BLOCKS) if len(part)]
        noise = float(np.std(parts, ddof=1) / np.sqrt(len(parts))) if len(parts) > 1 else np.inf
        yield Comparison(judged, float(worth.mean()), float(gain.mean()), noise)


def _worth(judged: RequestJudgement, success_worth: float) -> FloatArray:
    """Shape (requests,): what each answer is worth to the user."""
    return judged.earned + success_worth * judged.succeeded


def last_requests(problem: RequestProblem, most: int) -> RequestProblem:
    """The problem with the last requests of its stream."""
    first = max(0, len(problem.stream) - most)
    begin_s = float(problem.stream.arrival_s[first])
    stream = problem.stream.taken(slice(first, None), problem.stream.arrival_s[first:] - begin_s)
    return problem.replace(stream=stream, duration_s=max(problem.duration_s - begin_s, 1e-9))


def candidates(problem: RequestProblem) -> list[RequestPlan]:
    """Policies that are tried: all that ship, and `rolling` with more or less weight on success."""
    policies = [*listed(), *SAFER, *BOLDER]
    fits = [p for p in policies if p.unsupported_reason(problem) is None]
    return list(dict.fromkeys(policy(problem, Context()) for policy in fits))
