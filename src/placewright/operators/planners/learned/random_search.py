"""Random search: the baseline of every planner that learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from placewright.operators.planners.learned.checkpoint import Schema
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.grouping import How, group_operators
from placewright.operators.planners.learned.planner import LearnedPlanner
from placewright.operators.planners.learned.sampling import drawn
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Count


@final
@dataclass(frozen=True, slots=True)
class RandomSearch(LearnedPlanner):
    """Groups on devices drawn uniformly, again and again; the best placement seen.

    Parameters
    ----------
    samples
        Evaluations allowed, trivial plans included.
    reward
        ``measured``: placements are executed and timed (`measured.learn_from_runs`).
    groups, grouping
        At most, and how operators are grouped.
    """

    name: ClassVar[str] = "random-search"
    checkpoint: ClassVar[str] = ""
    rehearsal: ClassVar[int] = 0
    samples: Count = 2400
    reward: Literal["judge", "measured"] = "judge"
    grouping: How = "modules"
    groups: Count = 128
    batch: Count = 64

    def schema(self, problem: OperatorProblem) -> Schema:
        """It learns nothing."""
        return Schema(self.name, "none")

    def learn(self, evaluations: Evaluations) -> None:
        """Draw until the budget is spent."""
        grouping = group_operators(evaluations.problem, self.grouping, self.groups)
        rng = np.random.default_rng(evaluations.context.seed)
        while count := evaluations.room(self.batch):
            evaluations.costs(grouping.placements(drawn(grouping.uniform, count, rng)))
