"""`Evaluations`: placements judged in batches, counted, with the best ones kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.costs import Groups, groups_of, linked
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.calls import CallDecoder
from placewright.operators.planners.learned.episodes import RULES, ruled_placements
from placewright.operators.planners.lists.planners import CEFT, CPOP, HEFT, HEFT_CONTENDED, PEFT
from placewright.operators.planners.placements import Score, Start, score_plan
from placewright.operators.planners.trivial import RoundRobin, Single
from placewright.operators.problem import Communication, OperatorProblem
from placewright.operators.simulation.star import is_star_latency, star_scores
from placewright.planning.contract import Context, Planner, proposal_of

TEACHERS: tuple[Planner, ...] = (HEFT, HEFT_CONTENDED, PEFT, CPOP, CEFT)
"""List schedulers, the best of which a planner may start from."""

MOST_OPERATORS = 2000
"""Above this the critical-path rules, which read all siblings of an operator, are not tried."""

REPORT_EVERY_S = 0.25
"""Seconds between two reports of progress."""

Measure = Callable[[IntArray], FloatArray]
"""Measured seconds of the rows of an array of placements; ``inf`` where one cannot run."""


Origin = Literal["trivial", "incumbent", "list schedule", "rehearsal", "sample", "edit"]
"""Where a plan is from: ``sample``: a policy drew it; ``rehearsal``: found on the judge before runs
are measured.
"""


class Update(NamedTuple):
    """An update of a policy, made after so many evaluations.

    `mean_s`: cost of the samples that it was made from, which their rewards decrease with.
    `entropy`: of the policy, summed over what it chooses. `loss`: ``nan`` where a method has none.
    """

    evaluations: int
    mean_s: float
    entropy: float
    loss: float


class Point(NamedTuple):
    """The best value after so many evaluations and seconds."""

    evaluations: int
    seconds: float
    value_s: float


@dataclass(slots=True, eq=False)
class Evaluations:
    """Placements of one problem, judged in batches within a budget.

    Placements that break memory limits or use missing links cost more than the worst trivial plan,
    and more the farther they are over. Other rules (groups, pins, operators that a device cannot
    run) are kept by drawing devices per group, among those that
    `placewright.operators.costs.Groups.allowed` allows. Every judged plan counts, the trivial ones
    too.

    Attributes
    ----------
    limit
        Evaluations allowed; ``inf`` where only `Context.deadline_s` ends the search.
    repairs
        Whether groups are moved off devices that cannot hold their resident bytes before a
        placement is judged, and made into calls that can be made (`calls.CallDecoder`).
    elites
        How many of the best different placements are kept.
    decoder
        Makes calls of placements (star latency); planners as published set it to ``None``.
    filler
        The same for everything whose transfers go through host memory, for starts.
    measure
        Runs placements instead of judging them; ``None`` for the judge.
    order
        Shape (n,): priorities under which placements are judged; ``None`` for the upward rank.
    count
        Evaluations so far.
    best
        The best plan so far: fewest bytes over, then least value.
    curve
        A point per improvement of a feasible plan.
    origin
        Where the plans that are judged now are from.
    best_of
        The best feasible plan of each origin.
    updates
        Of the policy, in order.
    archive
        Costs and placements of the best feasible placements, best first.
    parameters
        What a planner has learned, by name: from a checkpoint at first, then what it keeps.
    reference_s, trivial_s
        Cost of the worst and of the best trivial plan: what penalties begin at, and the scale of
        rewards.
    """

    problem: OperatorProblem
    context: Context = field(default_factory=Context)
    limit: float = math.inf
    repairs: bool = True
    elites: int = 32
    measure: Measure | None = None
    order: IntArray | None = None
    count: int = 0
    best: Start = field(init=False)
    curve: list[Point] = field(default_factory=list)
    origin: Origin = "trivial"
    best_of: dict[Origin, Start] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    archive: list[tuple[float, IntArray]] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    judge: OperatorJudge = field(init=False)
    groups: Groups = field(init=False)
    decoder: CallDecoder | None = field(init=False)
    filler: CallDecoder | None = field(init=False)
    reference_s: float = field(init=False, default=math.nan)
    trivial_s: float = field(init=False, default=math.nan)
    begun_s: float = field(default_factory=time.perf_counter)
    _reported_s: float = 0.0
    _known: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.judge, self.groups = OperatorJudge(self.problem), groups_of(self.problem)
        star = self.problem.communication is Communication.STAR
        self.filler = CallDecoder(self.problem) if star else None
        self.decoder = self.filler if is_star_latency(self.problem) else None
        self.best = Start(self._anywhere(), Score(math.inf, math.inf))
        self._offer_trivial()
        self.origin = "sample"

    @property
    def best_origin(self) -> Origin:
        """Where the best feasible plan is from; of equal ones the first."""
        return min(self.best_of, key=lambda k: self.best_of[k].score, default="trivial")

    def policy_s(self) -> float:
        """Value of the best plan that the policy itself drew; ``inf`` where none fits."""
        drawn = self.best_of.get("sample")
        return math.inf if drawn is None else drawn.score.value_s

    @contextmanager
    def given_by(self, origin: Origin) -> Iterator[None]:
        """Within the block plans are from elsewhere than the policy."""
        before, self.origin = self.origin, origin
        try:
            yield
        finally:
            self.origin = before

    def updated(self, costs: FloatArray, entropy: float, loss: float) -> None:
        """Remember an update that was made from samples of these costs."""
        self.updates.append(Update(self.count, float(costs.mean()), float(entropy), float(loss)))

    def room(self, wanted: int) -> int:
        """The part of `wanted` evaluations that the budget still has; 0 ends a search."""
        at_bound = self.best.score.over_bytes == 0 and self.best.score.value_s <= self._bound()
        left_s = self.context.remaining_s()
        if at_bound or left_s <= 0:
            return 0
        if self.measure is not None and self.count:  # a batch of runs must end in time
            fitting = left_s * self.count / max(self.seconds(), 1e-9)
            wanted = max(1, int(min(wanted, fitting)))
        return max(0, int(min(wanted, self.limit - self.count)))

    def costs(self, placements: IntArray) -> FloatArray:
        """Cost of every row in seconds: its value, or a penalty where it does not fit.

        `placements`: Shape (k, n), device indices that keep groups, pins and refusals.
        """
        return self._evaluated(*self.repaired(placements))[0]

    def repaired(self, placements: IntArray) -> tuple[IntArray, IntArray | None]:
        """Rows as they are judged: moved off full devices, and with the calls of each operator."""
        rows = np.atleast_2d(placements)
        if not self.repairs:
            return rows, None
        if self.decoder is not None:
            return self.decoder(rows)
        return self._moved_off(rows), None

    def _evaluated(
        self, rows: IntArray, calls: IntArray | None = None
    ) -> tuple[FloatArray, BoolArray]:
        """Costs of rows, and which of them can run; the good ones are kept."""
        if self.measure is not None:
            values, over = self.measure(rows), np.zeros(len(rows), dtype=np.int64)
        elif calls is not None:
            values, over = star_scores(self.problem, rows, calls)
        else:
            values, over = self.judge.many(rows, self.order)
        self.count += len(rows)
        penalised = self._penalised(rows, values, over)
        fits = (over == 0) & np.isfinite(values)
        for k in np.argsort(penalised, kind="stable").tolist():
            apart = float(over[k]) if np.isfinite(values[k]) else max(float(over[k]), 1.0)
            call = None if calls is None else calls[k]
            if not self._keep(rows[k], penalised[k], bool(fits[k]), apart, call):
                break
        self._report()
        return penalised, fits

    def offer(self, plan: OperatorPlan) -> float:
        """Judge one plan with its own order; the cost, ``inf`` where it cannot be simulated.

        Measured where placements are: the order is then the engine's.
        """
        if self.measure is not None:
            cost, fits = self._evaluated(np.array(plan.placement)[None])
            return float(cost[0]) if fits[0] else math.inf
        self.count += 1
        try:
            start = score_plan(self.judge, plan)
        except InfeasibleError:
            return math.inf
        self._take(start)
        self._file(start.score.value_s, start.place, start.score.over_bytes == 0)
        value, over = np.array([start.score.value_s]), np.array([start.score.over_bytes])
        return float(self._penalised(start.place[None], value, over)[0])

    def credit(self, evaluations: int, starts: Iterable[Start]) -> None:
        """Count evaluations that a compiled search made itself, and keep what it found."""
        self.count += evaluations
        for start in starts:
            self._take(start)
            self._file(start.score.value_s, start.place, start.score.over_bytes == 0)
        self._report()

    def teach(self) -> OperatorPlan | None:
        """Judge the list schedules; the best one, by which samples are ordered from now on.

        Critical-path rules that price siblings are judged first (`episodes.RULES`). The order of
        the best list schedule is used only where its placement is worth more with it than without.
        Where transfers go through host memory, accelerators filled in turn stand for all of these.
        """
        with self.given_by("list schedule"):
            return self._taught()

    def _taught(self) -> OperatorPlan | None:
        if self.filler is not None:
            rows = self.filler.fills()
            self.costs(rows[: self.room(len(rows))])
            return self.best.plan()
        if self.problem.n <= MOST_OPERATORS and (count := self.room(len(RULES))):
            self.costs(ruled_placements(self.problem, RULES[:count]))
        found: list[tuple[float, OperatorPlan]] = []
        for planner in TEACHERS:
            if planner.unsupported_reason(self.problem) is not None or not self.room(1):
                continue
            try:
                plan = proposal_of(planner(self.problem, self.context)).plan
            except InfeasibleError:
                continue
            found.append((self.offer(plan), plan))
        if not found:
            return None
        teacher = min(found, key=lambda pair: pair[0])[1]
        if self.measure is None and teacher.order is not None and self.room(2) == 2:
            plain = self.offer(OperatorPlan(teacher.placement))
            if self.offer(OperatorPlan(teacher.placement, teacher.order)) < plain:
                self.order = np.array(teacher.order)
        return teacher

    def keep(self, **parameters: Any) -> None:
        """Remember what was learned so far, for a checkpoint or after Ctrl-C."""
        self.parameters = parameters

    def seconds(self) -> float:
        """Since the evaluations began."""
        return time.perf_counter() - self.begun_s

    def _bound(self) -> float:
        return self.context.bound if self.measure is None else 0.0

    def _anywhere(self) -> IntArray:
        place: IntArray = self.groups.allowed.argmax(axis=1)[self.groups.group]
        return place

    def _offer_trivial(self) -> None:
        """Single devices, devices in turn, and what was known before."""
        trivial: list[Planner] = [*(Single(d) for d in self.problem.device_names), RoundRobin()]
        worst = 0.0
        if self.measure is not None:
            self.reference_s = 1.0  # of placements that cannot run, until one can
        for planner in trivial:
            try:
                plan = proposal_of(planner(self.problem, self.context)).plan
            except InfeasibleError:
                continue
            value = self.offer(plan)
            worst = max(worst, value if math.isfinite(value) else 0.0)
        if self.context.incumbent is not None:
            with self.given_by("incumbent"):
                self.offer(self.context.incumbent)
        finite = np.where(np.isfinite(self.problem.compute_s), self.problem.compute_s, 0.0)
        self.reference_s = worst or float(finite.max(axis=1).sum()) or 1.0
        self.trivial_s = self.curve[-1].value_s if self.curve else self.reference_s
        self.trivial_s = self.trivial_s or 1.0

    def _penalised(self, rows: IntArray, values: FloatArray, over: Any) -> FloatArray:
        """Values, with penalties that grow with the bytes over or with the missing links."""
        cost = np.array(values, dtype=np.float64)
        room = self.problem.memory_bytes[np.isfinite(self.problem.memory_bytes)].sum()
        short = np.isfinite(cost) & (over > 0)
        cost[short] += self.reference_s * (1.0 + over[short] / max(room, 1.0))
        for k in np.flatnonzero(~np.isfinite(cost)).tolist():
            cost[k] = self.reference_s * (3.0 + self._unlinked(rows[k]))
        return cost

    def _unlinked(self, place: IntArray) -> float:
        """Share of tensor uses between devices without a link."""
        p = self.problem
        source = place[p.consumed_from]
        target = place[p.consumers]
        missing = (source != target) & ~linked(p)[source, target]
        return float(missing.mean()) if len(missing) else 0.0

    def _keep(
        self, place: IntArray, cost: float, fits: bool, over: float, call: IntArray | None
    ) -> bool:
        """Keep a judged placement if it is good; whether a worse one might be kept too."""
        if fits or self.best.score.over_bytes > 0:
            score = Score(over, cost)
            self._take(Start(place.copy(), score, self.order, call=call))
        return self._file(cost, place, fits)

    def _take(self, start: Start) -> None:
        if start.score.over_bytes == 0:
            known = self.best_of.get(self.origin)
            if known is None or start.score < known.score:
                self.best_of[self.origin] = start
        if start.score >= self.best.score:
            return
        self.best = start
        if start.score.over_bytes == 0:
            self.curve.append(Point(self.count, self.seconds(), start.score.value_s))

    def _file(self, cost: float, place: IntArray, fits: bool) -> bool:
        """Put a placement into the archive if it is among the best different ones."""
        full = len(self.archive) >= self.elites
        if not fits or (full and cost >= self.archive[-1][0]):
            return False
        key = place.tobytes()
        if key not in self._known:
            self._known.add(key)
            self.archive.append((cost, np.array(place)))
            self.archive.sort(key=lambda entry: entry[0])
            for _, dropped in self.archive[self.elites :]:
                self._known.discard(dropped.tobytes())
            del self.archive[self.elites :]
        return True

    def _moved_off(self, rows: IntArray) -> IntArray:
        """The same rows, with groups moved off devices too small for their resident bytes."""
        room = self.problem.memory_bytes
        if not np.isfinite(room).any():
            return rows
        first, size = self.groups.first, self.groups.resident_bytes
        fixed = rows.copy()
        for row in fixed:
            load = np.bincount(row[first], size, self.problem.m).astype(np.float64)
            if (load > room).any():
                row[:] = self._spread(row[first], load)[self.groups.group]
        return fixed

    def _spread(self, place: IntArray, load: FloatArray) -> IntArray:
        """Largest groups of overfull devices to the allowed device with the most room."""
        room, size = self.problem.memory_bytes, self.groups.resident_bytes
        place = place.copy()
        for g in np.argsort(-size, kind="stable").tolist():
            d = int(place[g])
            if load[d] <= room[d] or size[g] == 0:
                continue
            free = np.where(self.groups.allowed[g], room - load, -np.inf)
            to = int(free.argmax())
            if to != d and free[to] >= size[g]:
                load[d] -= size[g]
                load[to] += size[g]
                place[g] = to
        return place

    def _report(self) -> None:
        now = time.perf_counter()
        if now - self._reported_s < REPORT_EVERY_S:
            return
        self._reported_s = now
        fits = self.best.score.over_bytes == 0
        self.context.progress(
            what=f"{self.count} evaluations",
            value=self.best.score.value_s if fits else math.inf,
            bound=self._bound(),
            elapsed_s=self.seconds(),
        )
