"""What `solve` needs of wing 4: planners, judge and bounds.

A planner chooses a policy before the first request has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from placewright.errors import MissingDependencyError, UnknownNameError
from placewright.planning.contract import BoundContext, Context, Planner, on_request, proposal_of
from placewright.planning.parameters import choose
from placewright.planning.wings import with_plug_ins
from placewright.requests.bounds import MOST_REQUESTS, bounds, windows
from placewright.requests.bounds import refined_bounds as relaxed_bounds
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import POLICIES
from placewright.requests.policy import Specification
from placewright.requests.problem import RequestProblem, first_requests
from placewright.requests.selection import Selected, Tuned

__all__ = [
    "baselines",
    "bounds",
    "judge",
    "objective",
    "planners",
    "portfolio",
    "refined_bounds",
    "refined_s",
    "rehearsals",
]

BASELINES = ("round-robin", "shortest-queue", "edf-fastest")
"""What one would run without variants, deadlines or both."""


AUTO = "rolling(wait=0.1)"
"""The policy of ``auto`` where no stream is known that it could be chosen for: a server's."""


def listed() -> list[Specification]:
    """Policies by the names that tables give them."""
    return [usual for kind in POLICIES.values() for usual in kind.usual()]


def planners(problem: RequestProblem) -> Mapping[str, Planner]:
    """Every planner by name."""
    return with_plug_ins("requests", [*listed(), Tuned(), Selected()])


def named_policy(choice: str) -> RequestPlan:
    """The plan of a policy for a server, which knows no stream: ``auto``, ``rolling(price=3)``.

    Raises `InputError`: no such policy, or parameters that it does not have.
    """
    known = {kind.policy: kind() for kind in POLICIES.values()} | {p.name: p for p in listed()}
    name = choice.partition("(")[0].strip()
    if choice != "auto" and name not in known and choice not in known:
        raise UnknownNameError("policy", name, ["auto", *known])
    made: Any = choose(known, AUTO if choice == "auto" else choice)[1]
    chosen = ((item.name, getattr(made, item.name)) for item in fields(made))
    usual = POLICIES[made.policy]()
    return RequestPlan(made.policy, tuple(x for x in chosen if x[1] != getattr(usual, x[0])))


FIRST = ("rolling", "edf-fastest-batch", "edf-fastest", "opportunity", "slack-fit", "edf-accurate")
"""What ``auto`` judges first: seldom the worst, and quick to simulate."""

LONG, SAMPLE = 20_000, 1_000
"""Requests of a stream that is too long to judge every policy on, and of the sample that says which
ones to judge first."""


def portfolio(problem: RequestProblem) -> Sequence[str]:
    """Every policy, then parameters around the best one; on long streams likely winners first."""
    known = planners(problem)
    names = [name for name in known if not on_request(known[name]) and name != Tuned.name]
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    if len(problem.stream) > LONG:
        sample = first_requests(problem, SAMPLE)
        names.sort(key=lambda name: -_value_on(sample, known[name]))
    return [*names, Tuned.name]


def _value_on(sample: RequestProblem, planner: Planner) -> float:
    """Effective accuracy of a planner's policy; those that fail, plug-ins say, come last."""
    try:
        return judge(sample, proposal_of(planner(sample, Context())).plan).value
    except Exception:  # `auto` will note why
        return 0.0


def refined_s(problem: RequestProblem, limit_s: float) -> float:
    """A tenth: the fluid program is solved after the policies."""
    return limit_s / 10


def refined_bounds(
    problem: RequestProblem, known: BoundContext | None = None
) -> Iterator[tuple[str, float]]:
    """The fluid bound; but for ``auto`` also the Lagrangian one and, for few requests, windows'."""
    yield from relaxed_bounds(problem, known)
    few = len(problem.stream) <= MOST_REQUESTS
    # For `auto` the others take longer than every policy together.
    if few and not (known is not None and known.auto):
        limit_s = float("inf") if known is None else known.deadline_s
        with suppress(MissingDependencyError):
            yield "windows", windows(problem, limit_s)


def objective(problem: RequestProblem) -> str:
    """Effective accuracy."""
    return problem.objective


def baselines(problem: RequestProblem) -> Sequence[str]:
    """Policies that know no variants or no deadlines."""
    return list(BASELINES)


def rehearsals() -> Sequence[Callable[[], object]]:
    """None: kernels are few."""
    return ()
