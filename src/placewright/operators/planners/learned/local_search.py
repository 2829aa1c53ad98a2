"""Local search on the judge, counted as learned planners are: their strongest baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.checkpoint import Schema
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.planner import propose, unsupported_by_samples
from placewright.operators.planners.placements.search import improve
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Proposal


@final
@dataclass(frozen=True, slots=True)
class LocalSearch:
    """Annealing of placements on the judge (`placements.search`) within a number of evaluations.

    Parameters
    ----------
    samples
        Evaluations allowed, the starts included.
    start
        The best list schedule, or the best trivial plan.
    walk
        Evaluations per walk; every walk starts from the best plan.
    heats
        First temperature of each walk in turn, in mean operator times.
    """

    name: ClassVar[str] = "local-search"
    on_request: ClassVar[bool] = True
    checkpoint: ClassVar[str] = ""
    samples: int = 2400
    start: Literal["lists", "trivial"] = "lists"
    walk: int = 250
    heats: tuple[float, ...] = (0.1, 0.02, 0.04, 0.01)

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Links between pairs of devices, plans that need not be contiguous."""
        return unsupported_by_samples(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The best plan seen; raises `InfeasibleError`: a group that no device can run."""
        return propose(self, problem, context)

    def schema(self, problem: OperatorProblem) -> Schema:
        """It learns nothing."""
        return Schema(self.name, "none")

    def learn(self, evaluations: Evaluations) -> None:
        """Walk after walk from the best plan so far."""
        if self.start == "lists":
            evaluations.teach()
        walk = 0
        while count := evaluations.room(self.walk):
            found = improve(
                evaluations.judge,
                evaluations.groups,
                evaluations.best,
                moves=count,
                heat=self.heats[walk % len(self.heats)],
                seed=101 * evaluations.context.seed + walk + 1,
                deadline_s=evaluations.context.deadline_s,
            )
            evaluations.credit(count, [found])
            walk += 1
