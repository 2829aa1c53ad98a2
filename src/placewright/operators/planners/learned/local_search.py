"""Local search on the judge, counted as learned planners are: their strongest baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from placewright.numerics.arrays import BoolArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.checkpoint import Schema
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.planner import propose, unsupported_by_samples
from placewright.operators.planners.placements.search import improve, mean_operator_s
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
        """Plans that need not be contiguous."""
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
        if evaluations.filler is not None:
            self._walk_in_calls(evaluations)
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

    def _walk_in_calls(self, evaluations: Evaluations) -> None:
        """The same where transfers go through host memory: every placement is made into calls."""
        problem, rng = evaluations.problem, np.random.default_rng(evaluations.context.seed)
        groups, mean_s = evaluations.groups, mean_operator_s(problem)
        source = groups.group[np.repeat(problem.tensor_producer, np.diff(problem.consumer_offsets))]
        target = groups.group[problem.consumers]
        walk = 0
        while count := evaluations.room(self.walk):
            place = np.array(evaluations.best.place[groups.first])
            value_s, heat = evaluations.best.score.value_s, self.heats[walk % len(self.heats)]
            for done in range(count):
                near = _moved(place, source, target, groups.allowed, rng)
                row = evaluations.repaired(near[groups.group])[0][0]
                cost = float(evaluations.costs(row)[0])
                if cost < value_s + heat * mean_s * (1.0 - done / count):
                    place, value_s = row[groups.first], cost
            walk += 1


def _moved(
    place: IntArray,
    source: IntArray,
    target: IntArray,
    allowed: BoolArray,
    rng: np.random.Generator,
) -> IntArray:
    """One end of a tensor that crosses joins the other, or groups next to each other move."""
    near, crosses = place.copy(), np.flatnonzero(place[source] != place[target])
    if len(crosses) and rng.random() < 0.7:
        edge = int(rng.choice(crosses))
        a, b = (source[edge], target[edge]) if rng.random() < 0.5 else (target[edge], source[edge])
        if allowed[a, place[b]]:
            near[a] = place[b]
        return near
    first = int(rng.integers(len(place)))
    some = slice(first, first + int(rng.geometric(0.3)))
    device = int(rng.integers(allowed.shape[1]))
    near[some] = np.where(allowed[some, device], device, near[some])
    return near
