"""Planners of wing 4: a policy is chosen before the first request has arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from placewright.planning.contract import Planner
from placewright.planning.parameters import choose
from placewright.planning.wings import with_plug_ins
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import POLICIES
from placewright.requests.policies.early import EarlyBinding
from placewright.requests.policies.edf import Edf
from placewright.requests.policies.opportunity import Opportunity
from placewright.requests.policies.published import JellyfishLike, ModelSwitching
from placewright.requests.policies.rolling import Rolling
from placewright.requests.policies.slack_fit import SlackFit
from placewright.requests.policies.specification import Specification
from placewright.requests.policies.thesis import TwoSteps
from placewright.requests.problem import RequestProblem
from placewright.requests.selection import Selected

BASELINES = ("round-robin", "shortest-queue", "edf-fastest")
"""What one would run without variants, deadlines or both."""


AUTO = "rolling(wait=0.4)"
"""The policy of ``auto`` where no stream is known that it could be chosen for: a server's. Few
servers lose some requests without `wait`, and many, which it costs less, lose no accuracy by it."""


OWN: tuple[Specification, ...] = (
    EarlyBinding("round-robin"),
    EarlyBinding("random"),
    EarlyBinding("shortest-queue"),
    EarlyBinding("least-completion", "edf", drop=True),
    TwoSteps(),
    Edf("accurate"),
    Edf("fastest"),
    Edf("fastest", batching=True),
    JellyfishLike(),
    ModelSwitching(),
    SlackFit(),
    Rolling(),
    Opportunity(),
)
"""Policies by the names that tables give them."""


def planners(problem: RequestProblem) -> Mapping[str, Planner]:
    """Every planner by name."""
    return with_plug_ins("requests", [*OWN, Selected()])


def named_policy(choice: str) -> RequestPlan:
    """The plan of a policy for a server, which knows no stream: ``auto``, ``rolling(price=3)``.

    Raises `InputError`: no such policy, or parameters that it does not have.
    """
    known = {kind.policy: kind() for kind in POLICIES.values()} | {p.name: p for p in OWN}
    made: Any = choose(known, AUTO if choice == "auto" else choice)[1]
    chosen = ((item.name, getattr(made, item.name)) for item in fields(made))
    usual = POLICIES[made.policy]()
    return RequestPlan(made.policy, tuple(x for x in chosen if x[1] != getattr(usual, x[0])))


def portfolio(problem: RequestProblem) -> Sequence[str]:
    """One planner: choosing by what the judge counts would look ahead into the arrivals."""
    return [Selected.name]
