"""Baselines of the planners that learn, counted as they are: random search, and local search.

Local search on the judge is the strongest one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from placewright.operators.planners.learned.edits import edges_of, edit
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.grouping import How, group_operators
from placewright.operators.planners.learned.planner import LearnedPlanner, Schema, drawn
from placewright.operators.planners.placements import improve, mean_operator_s
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Count


@final
@dataclass(frozen=True, slots=True)
class LocalSearch(LearnedPlanner):
    """Annealing of placements on the judge (`placements`) within a number of evaluations.

    Parameters
    ----------
    samples
        Evaluations allowed, the starts included.
    reward, rehearsal
        ``measured``: placements are executed and timed (see `measured.learn_from_runs`), after so
        many evaluations of the judge; `samples` are then measured ones.
    start
        The best list schedule, or the best trivial plan.
    walk
        Evaluations per walk; every walk starts from the best plan.
    heats
        First temperature of each walk in turn, in mean operator times.
    """

    name: ClassVar[str] = "local-search"
    checkpoint: ClassVar[str] = ""
    samples: Count = 2400
    reward: Literal["judge", "measured"] = "judge"
    rehearsal: int = 2400
    start: Literal["lists", "trivial"] = "lists"
    walk: Count = 250
    heats: tuple[float, ...] = (0.1, 0.02, 0.04, 0.01)

    def schema(self, problem: OperatorProblem) -> Schema:
        """It learns nothing."""
        return Schema(self.name, "none")

    def learn(self, evaluations: Evaluations) -> None:
        """Walk after walk from the best plan so far."""
        if self.start == "lists":
            evaluations.teach()
        with evaluations.given_by("edit"):
            self._walk(evaluations)

    def _walk(self, evaluations: Evaluations) -> None:
        if evaluations.filler is not None or evaluations.measure is not None:
            self._walk_by_edits(evaluations)
            return
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

    def _walk_by_edits(self, evaluations: Evaluations) -> None:
        """The same, one placement at a time, where the compiled search cannot evaluate them.

        Where transfers go through host memory every placement is made into calls; measured
        placements have to be executed.
        """
        problem, rng = evaluations.problem, np.random.default_rng(evaluations.context.seed)
        grouping = group_operators(problem, "colocation", problem.n)
        edges, mean_s = edges_of(problem, grouping), mean_operator_s(problem)
        uniform, walk = grouping.uniform, 0
        while count := evaluations.room(self.walk):
            place = grouping.devices(problem, evaluations.best.place)
            value_s, heat = evaluations.best.score.value_s, self.heats[walk % len(self.heats)]
            for done in range(count):
                if not evaluations.room(1):
                    return
                near = place.copy()
                edit(near, grouping, edges, uniform, rng)
                row = evaluations.repaired(grouping.placements(near))[0][0]
                cost = float(evaluations.costs(row)[0])
                if cost < value_s + heat * mean_s * (1.0 - done / count):
                    place, value_s = grouping.devices(problem, row), cost
            walk += 1


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
