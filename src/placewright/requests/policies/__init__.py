"""Online policies of wing 4. This dict is the list of them; each is its own planner."""

from __future__ import annotations

from typing import Any

from placewright.errors import InputError, check_known
from placewright.planning.parameters import with_parameters
from placewright.requests.plan import RequestPlan
from placewright.requests.policies.edf import Edf
from placewright.requests.policies.opportunity import Opportunity
from placewright.requests.policies.published import (
    EarlyBinding,
    JellyfishLike,
    ModelSwitching,
    SlackFit,
    TwoSteps,
)
from placewright.requests.policies.rolling import Rolling
from placewright.requests.policy import Policy
from placewright.requests.service import Service

POLICIES: dict[str, Any] = {
    kind.policy: kind
    for kind in (
        EarlyBinding,
        TwoSteps,
        Edf,
        JellyfishLike,
        ModelSwitching,
        SlackFit,
        Rolling,
        Opportunity,
    )
}


def specification(plan: RequestPlan) -> Any:
    """The policy that a plan names, with the plan's parameters.

    Raises `InputError`: no such policy, or parameters that it does not have.
    """
    check_known("policy", plan.policy, POLICIES, where="plan")
    usual = POLICIES[plan.policy]()
    return with_parameters(usual, dict(plan.parameters), f"policy {plan.policy!r}")


def start(plan: RequestPlan, service: Service) -> Policy:
    """The policy object of a plan, for one stream of requests.

    Raises `InputError`: no such policy, or parameters that it does not have or cannot take.
    """
    made = specification(plan)
    try:
        policy: Policy = made.start(service, plan.seed)
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(
            "the policy refuses its parameters",
            where=f"plan {plan.policy!r}",
            by=str(error),
            hint="plan again for the variants and servers of this service",
        ) from None
    return policy
