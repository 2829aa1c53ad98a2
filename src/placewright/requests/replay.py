"""`replay`: requests that have come, played again with every policy that ships.

A server learns so which policy it needs, and `explain` says why one was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context
from placewright.requests.judge import RequestJudgement, judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import listed
from placewright.requests.policies import specification
from placewright.requests.problem import RequestProblem
from placewright.requests.selection import BOLDER, SAFER

REPLAYED = ((500, 10), (1500, 6), (4000, 3))
"""Latest rows on which all policies are replayed first, and how many others go on."""

BLOCKS, SURE, SURE_BACK = 10, 3.0, 2.0
"""Parts of a window of which the noise of differences is told, and standard errors by which another
policy has to be better, or the one before where a change is checked."""


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
    missed
        By how much the replay of the policy that decided was better than what came of it.
    """

    plan: RequestPlan
    value: float
    success_rate: float
    effective_accuracy: float
    tried: int
    requests: int
    before: float | None = None
    noise: float = 0.0
    missed: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For events and the live page."""
        found = {k: v for k, v in asdict(self).items() if k != "plan" and v is not None}
        numbers = {k: round(v, 5) if isinstance(v, float) else v for k, v in found.items()}
        return plan_json(self.plan) | numbers


def plan_json(plan: RequestPlan) -> dict[str, Any]:
    """A policy by name and parameters."""
    return {"policy": plan.policy, "parameters": dict(plan.parameters)}


def plan_text(plan: RequestPlan) -> str:
    """A policy as ``--policy`` takes it: the nearest one that tables list, and what differs."""
    made = specification(plan)

    def changed(usual: Any) -> list[str]:
        values = {item.name: getattr(made, item.name) for item in fields(made)}
        return [f"{key}={x}" for key, x in sorted(values.items()) if x != getattr(usual, key)]

    usual = min(made.usual(), key=lambda each: len(changed(each)))
    written = ", ".join(changed(usual))
    return f"{usual.name}({written})" if written else str(usual.name)


@dataclass(frozen=True, slots=True, eq=False)
class Experience:
    """What a server knows of a window that it has served.

    Attributes
    ----------
    earned
        Shape (requests,): what each answer was worth; ``nan`` where another policy decided, or it
        is still to come.
    missed
        Of policies that have decided, by how much their replays were better than what came.
    before
        The policy to go back to, where the change from it is checked: no other is replayed.
    lead
        First requests of the window that only fill the queue.
    barred
        Policies that were taken back, which are not tried again.
    """

    earned: FloatArray
    missed: tuple[tuple[RequestPlan, float], ...] = ()
    before: RequestPlan | None = None
    lead: int = 0
    barred: tuple[RequestPlan, ...] = ()


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


def replay(
    window: RequestProblem,
    plan: RequestPlan,
    success_worth: float = 0.0,
    known: Experience | None = None,
) -> PolicyChoice:
    """`plan`, or another policy that is better on these requests by more than the noise.

    A policy that has decided before is compared with what came of `plan`, and its replay is
    corrected by what the replay had missed then. One that never has is compared by replays alone,
    and has to be better by more than they miss of `plan`.

    Parameters
    ----------
    window
        Requests that have come, with the latencies of now.
    plan
        What decided.
    known
        What came of it.
    """
    known = known or Experience(np.full(len(window.stream), np.nan))
    if known.before is None:
        tried, judged, others = _likely(window, plan, success_worth, known)
    else:
        tried, judged, others = 2, {}, [known.before]
    judged |= {each: judge(window, each) for each in (plan, *others) if each not in judged}
    worth = {each: _worth(judged[each], success_worth)[known.lead :] for each in judged}
    own, earned = worth[plan], known.earned[known.lead :]
    came = np.isfinite(earned)
    missed = float((own - earned)[came].mean()) if came.any() else 0.0
    real, others_missed = np.where(came, earned, own - missed), dict(known.missed)
    best, most, noise = plan, 0.0, 0.0
    for other in others:
        if other in others_missed:
            gain, error = _mean_and_error(worth[other] - others_missed[other] - real)
            least = (SURE if known.before is None else SURE_BACK) * error
        else:
            gain, error = _mean_and_error(worth[other] - own)
            least = SURE * error + abs(missed)
        if gain > max(least, most):
            best, most, noise = other, gain, error
    before = float(real.mean())
    return PolicyChoice(
        best,
        before + most,
        judged[best].success_rate,
        judged[best].value,
        tried,
        len(own),
        before,
        noise,
        missed,
    )


def _likely(
    window: RequestProblem, plan: RequestPlan, success_worth: float, known: Experience
) -> tuple[int, dict[RequestPlan, RequestJudgement], list[RequestPlan]]:
    """How many policies were tried, judgements on the whole window, and the likely best others."""
    # The same policy may be written with and without what is usual: as it is known, it is found.
    written = {specification(each): each for each, _ in known.missed} | {specification(plan): plan}
    tried = [written.get(specification(each), each) for each in candidates(window)]
    others = [each for each in tried if each not in (plan, *known.barred)]
    judged = dict[RequestPlan, RequestJudgement]()
    for requests, kept in REPLAYED:
        latest, before = last_requests(window, requests), next(iter(judged.values()), None)
        if before is None or len(latest.stream) > len(before.problem.stream):
            judged = _judged(latest, [plan, *others], success_worth)
        worth = {each: _worth(judged[each], success_worth).mean() for each in judged}
        others = sorted((each for each in judged if each != plan), key=lambda each: -worth[each])
        others = others[:kept]
    whole = len(judged[plan].problem.stream) == len(window.stream)
    return len({plan, *tried}), judged if whole else {}, others


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
) -> Iterator[Comparison]:
    """Each of these on the problem's requests, beside the first of them."""
    first: FloatArray | None = None
    for plan in plans:
        judged = judge(problem, plan)
        worth = _worth(judged, success_worth)
        first = worth if first is None else first
        yield Comparison(judged, float(worth.mean()), *_mean_and_error(worth - first))


def _mean_and_error(gain: FloatArray) -> tuple[float, float]:
    """Mean, and its standard error by the means of parts: neighbouring requests wait together."""
    parts = [float(part.mean()) for part in np.array_split(gain, BLOCKS) if len(part)]
    error = float(np.std(parts, ddof=1) / np.sqrt(len(parts))) if len(parts) > 1 else np.inf
    return float(gain.mean()), error


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
