"""Edits of good placements, and baselines of the planners that learn: random and local search.

Local search on the judge is the strongest baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.features import Grouping, How, group_operators
from placewright.operators.planners.learned.planner import LearnedPlanner, Schema, drawn
from placewright.operators.planners.placements import improve, mean_operator_s
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Count

JOIN, CROSS, CUT = 0.6, 0.1, 0.25
"""Chances that an edit joins the ends of a tensor, that a second parent gives a stretch, and that a
stretch reaches to the end of the order."""

UNIFORM = 0.2
"""Share of the uniform distribution in the devices that stretches are sent to."""

PARENTS = 8
"""How many of the best placements are edited; each half as often as the one before it."""

TOGETHER = 4
"""Edits that are judged at once; the next ones start from the best placements with these."""


class Edges(NamedTuple):
    """Pairs of groups that a tensor goes between, each pair once."""

    source: IntArray
    target: IntArray


def edges_of(problem: OperatorProblem, grouping: Grouping) -> Edges:
    """The edges between groups of operators."""
    ends = grouping.group[np.stack([problem.consumed_from, problem.consumers])]
    return Edges(*np.unique(ends[:, ends[0] != ends[1]], axis=1))


class Edits:
    """Judges edits of the best placements so far, by default of colocation groups."""

    def __init__(
        self,
        evaluations: Evaluations,
        grouping: Grouping | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        problem = evaluations.problem
        self.evaluations = evaluations
        self.grouping = grouping or group_operators(problem, "colocation", problem.n)
        self.edges = edges_of(problem, self.grouping)
        self.rng = rng or np.random.default_rng(evaluations.context.seed)
        self.uniform = self.grouping.uniform

    def judged(self, wanted: int, chances: FloatArray | None = None) -> tuple[IntArray, FloatArray]:
        """Devices of groups and costs of so many edits, or as many as there is room for.

        Parameters
        ----------
        chances
            Shape (groups, m): from which devices of stretches are drawn; uniform by default.
        """
        drawn, costs = [np.empty((0, self.grouping.count), dtype=np.int64)], [np.empty(0)]
        chances = self.uniform if chances is None else chances
        while wanted > 0 and (some := self.evaluations.room(min(TOGETHER, wanted))):
            drawn.append(
                edited(self.evaluations, self.grouping, self.edges, chances, some, self.rng)
            )
            with self.evaluations.given_by("edit"):
                costs.append(self.evaluations.costs(self.grouping.placements(drawn[-1])))
            wanted -= some
        return np.concatenate(drawn), np.concatenate(costs)


def edited(
    evaluations: Evaluations,
    grouping: Grouping,
    edges: Edges,
    chances: FloatArray,
    count: int,
    rng: np.random.Generator,
) -> IntArray:
    """Shape (count, groups): edits of the best placements that were evaluated.

    A tenth of them first takes a stretch of the topological order from another one of the best.

    `chances`: Shape (groups, m): the policy, from which devices of stretches are drawn.
    """
    best = [place for _, place in evaluations.archive[:PARENTS]] or [evaluations.best.place]
    parents = [grouping.devices(evaluations.problem, place) for place in best]
    rows = np.empty((count, grouping.count), dtype=np.int64)
    for row in rows:
        row[:] = parents[min(len(parents), int(rng.geometric(0.5))) - 1]
        if rng.random() < CROSS:
            low, high = np.sort(rng.integers(0, grouping.count + 1, 2))
            row[low:high] = parents[int(rng.integers(len(parents)))][low:high]
        for _ in range(int(rng.geometric(0.67))):
            edit(row, grouping, edges, chances, rng)
    return rows


def edit(
    row: IntArray,
    grouping: Grouping,
    edges: Edges,
    chances: FloatArray,
    rng: np.random.Generator,
) -> None:
    """Change devices of groups in place.

    One end of a tensor that crosses joins the other, or a stretch of the topological order, short
    or all the rest, goes to one device. Groups stay where they are if the device cannot run them.
    """
    allowed = grouping.allowed
    crossing = np.flatnonzero(row[edges.source] != row[edges.target])
    if len(crossing) and rng.random() < JOIN:
        k = int(rng.choice(crossing))
        ends = int(edges.source[k]), int(edges.target[k])
        moved, fixed = ends if rng.random() < 0.5 else ends[::-1]
        if allowed[moved, row[fixed]]:
            row[moved] = row[fixed]
        return
    first = int(rng.integers(len(row)))
    some = slice(first, None if rng.random() < CUT else first + int(rng.geometric(0.3)))
    weight = (1 - UNIFORM) * chances[first] + UNIFORM * allowed[first] / allowed[first].sum()
    if np.count_nonzero(weight) > 1:
        weight[row[first]] = 0.0
    device = int(rng.choice(len(weight), p=weight / weight.sum()))
    row[some] = np.where(allowed[some, device], device, row[some])


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
