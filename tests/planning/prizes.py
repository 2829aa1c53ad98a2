"""A wing that maximises: choose one prize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from placewright.planning.contract import Context, Direction, Planner, Proposal
from placewright.planning.wing import Planning, Wing


@dataclass(frozen=True, slots=True)
class Prizes:
    """What there is to choose from; more than `limit` cannot be carried."""

    worth: tuple[float, ...]
    limit: float = 100.0
    name: str = "prizes"
    objective: str = "worth"

    def hash(self) -> str:
        """Of all of it."""
        return str(hash((self.worth, self.limit)))


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    index: int


@dataclass(frozen=True, slots=True)
class Take:
    """The prize of this index, and what it claims that none is worth more than."""

    index: int = 0
    claim: float | None = None

    @property
    def name(self) -> str:
        """``take-INDEX``."""
        return f"take-{self.index}"

    def unsupported_reason(self, problem: Prizes) -> str | None:
        """There is one."""
        return None if self.index < len(problem.worth) else "no such prize"

    def __call__(self, problem: Prizes, context: Context) -> Proposal[Choice]:
        """The choice."""
        return Proposal(Choice(self.index), self.claim)


class PrizePlanning(Planning):
    """In the order in which they stand."""

    def planners(self, problem: Prizes) -> Mapping[str, Planner]:
        """One for each prize."""
        return {f"take-{k}": Take(k) for k in range(len(problem.worth))}

    def judge(self, problem: Prizes, plan: Choice) -> Any:
        """Its worth, if it can be carried."""
        worth = problem.worth[plan.index]
        over = max(0.0, worth - problem.limit)
        return SimpleNamespace(
            value=worth,
            feasible=not over,
            violation=f"{over:g} too heavy" if over else "",
            violation_size=over,
            metrics={},
        )

    def bounds(self, problem: Prizes) -> dict[str, float]:
        """Upper bounds."""
        return {"all": sum(problem.worth), "limit": problem.limit}

    def baselines(self, problem: Prizes) -> Sequence[str]:
        """The first."""
        return ["take-0"]


WING = Wing(
    "prizes",
    "one prize",
    lambda: Prizes,
    lambda: Choice,
    PrizePlanning,
    lambda: SimpleNamespace(),  # type: ignore[arg-type]
    direction=Direction.MAXIMISE,
)
