"""Nothing moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from placewright.planning.contract import Context
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.problem import SampleProblem


@final
@dataclass(frozen=True, slots=True)
class NoMove:
    """Every sample stays where it is: what every other plan is compared with."""

    name: str = "none"

    def unsupported_reason(self, problem: SampleProblem) -> str | None:
        """Always."""
        return None

    def __call__(self, problem: SampleProblem, context: Context) -> SamplePlan:
        """The empty plan."""
        return nothing()
