"""Planners of wing 4: a policy is chosen before the first request has arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewright.planning.contract import Planner
from placewright.planning.wings import plugged_planners
from placewright.requests.policies.early import EarlyBinding
from placewright.requests.policies.edf import Edf
from placewright.requests.policies.opportunity import Opportunity
from placewright.requests.policies.published import JellyfishLike, ModelSwitching
from placewright.requests.policies.rolling import Rolling
from placewright.requests.policies.slack_fit import SlackFit
from placewright.requests.policies.thesis import TwoSteps
from placewright.requests.problem import RequestProblem
from placewright.requests.selection import Selected

ENTRY_POINTS = "placewright.requests.planners"
"""Group under which other distributions offer planners: classes that take no arguments."""

BASELINES = ("round-robin", "shortest-queue", "edf-fastest")
"""What one would run without variants, deadlines or both."""


AUTO = "rolling"
"""The policy of ``auto`` where no stream is known that it could be chosen for: a server's."""


def planners(problem: RequestProblem) -> Mapping[str, Planner]:
    """Every planner by name."""
    own: list[Planner] = [
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
        Selected(),
    ]
    return {planner.name: planner for planner in (*own, *plugged_planners(ENTRY_POINTS))}


def portfolio(problem: RequestProblem) -> Sequence[str]:
    """One planner: choosing by what the judge counts would look ahead into the arrivals."""
    return [Selected.name]
