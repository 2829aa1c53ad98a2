"""What all policies share: a frozen specification that is a planner and starts policy objects."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from placewright.planning.contract import Context
from placewright.requests.plan import Parameter, RequestPlan
from placewright.requests.problem import RequestProblem


class Specification:
    """Parameters of a policy, as a planner: it answers with a plan that names them.

    Inherited by frozen dataclasses, whose fields are the parameters. Nothing is looked up in the
    stream: a policy is chosen before the first request has arrived.
    """

    __slots__ = ()

    policy: ClassVar[str]

    @property
    def name(self) -> str:
        """The name on the command line and in tables."""
        return self.policy

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """Every problem is supported, unless a policy says otherwise."""
        return None

    def parameters(self, problem: RequestProblem) -> dict[str, Parameter]:
        """Fields by name, and what a policy takes from the problem's published tables."""
        mine: Any = self
        return {item.name: getattr(self, item.name) for item in fields(mine)}

    def __call__(self, problem: RequestProblem, context: Context) -> RequestPlan:
        """The plan that names this policy."""
        return RequestPlan(self.policy, tuple(self.parameters(problem).items()), context.seed)
