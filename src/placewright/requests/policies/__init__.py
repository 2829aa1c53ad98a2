"""Online policies of wing 4. This dict is the list of them; each is its own planner."""

from __future__ import annotations

from typing import Any

from placewright.errors import InputError, UnknownNameError
from placewright.requests.plan import RequestPlan
from placewright.requests.policies.early import EarlyBinding
from placewright.requests.policies.edf import Edf
from placewright.requests.policies.opportunity import Opportunity
from placewright.requests.policies.published import JellyfishLike, ModelSwitching
from placewright.requests.policies.rolling import Rolling
from placewright.requests.policies.slack_fit import SlackFit
from placewright.requests.policies.thesis import TwoSteps
from placewright.requests.policy import Policy
from placewright.requests.service import Service

POLICIES: dict[str, Any] = {
    kind.policy: kind
    for kind in (
        EarlyBinding,
        Edf,
        JellyfishLike,
        ModelSwitching,
        Opportunity,
        Rolling,
        SlackFit,
        TwoSteps,
    )
}


def start(plan: RequestPlan, service: Service) -> Policy:
    """The policy object of a plan, for one stream of requests.

    Raises `InputError`: no such policy, or a parameter that it does not have.
    """
    if plan.policy not in POLICIES:
        raise UnknownNameError("policy", plan.policy, POLICIES, where="plan")
    try:
        made = POLICIES[plan.policy](**dict(plan.parameters))
    except TypeError as error:
        raise InputError("has other parameters", where=plan.policy, by=str(error)) from None
    policy: Policy = made.start(service, plan.seed)
    return policy
