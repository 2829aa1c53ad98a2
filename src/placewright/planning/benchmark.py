"""Planners over many problems: ratios to the best and to the bound, wins, time."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from placewright.errors import InfeasibleError, InputError, described
from placewright.io.arguments import Unlimited, checked
from placewright.planning.contract import Direction, Planner, Progress, on_request, silent
from placewright.planning.parameters import (
    AUTO,
    Auto,
    PlannerChoice,
    auto_of,
    check_distinct,
    choose,
    label,
    opened,
)
from placewright.planning.result import data_frame
from placewright.planning.solving import solve
from placewright.planning.wings import bounds as quick_bounds
from placewright.planning.wings import wing_of
from placewright.report.text import elapsed, plain_table

SAME = 1e-9
"""Share by which values of two planners that both win may differ."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One planner on one problem.

    Attributes
    ----------
    value
        Infinite where it gave no plan that fits; `note` then says why.
    to_best, to_bound
        How many times as large the value is as the best one of all planners on this problem, and
        as the bound (as small, where the wing maximises).
    """

    problem: str
    planner: str
    value: float
    to_best: float
    to_bound: float
    seconds: float
    note: str = ""

    @property
    def solved(self) -> bool:
        """Whether there is a plan that fits."""
        return math.isfinite(self.value)

    @property
    def won(self) -> bool:
        """Whether no other planner found a better plan."""
        return self.solved and self.to_best <= 1 + SAME


@dataclass(frozen=True, slots=True)
class PlannerStatistics:
    """One planner over all problems that it solved; ratios are geometric means.

    `to_bound`: over those problems on which the bound says something: is not below every value by
    an infinite factor.
    """

    planner: str
    solved: int
    wins: int
    to_best: float
    worst_to_best: float
    to_bound: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Bench:
    """Planners over many problems.

    Attributes
    ----------
    rows
        A row per problem and planner.
    problems
        How many there are.
    """

    rows: tuple[BenchRow, ...]
    problems: int

    @property
    def statistics(self) -> tuple[PlannerStatistics, ...]:
        """Of every planner, the best ratio first; those that solved nothing last."""
        names = dict.fromkeys(row.planner for row in self.rows)
        bounded = {row.problem for row in self.rows if math.isfinite(row.to_bound)}
        found = [
            _statistics(name, [r for r in self.rows if r.planner == name], bounded)
            for name in names
        ]
        return tuple(sorted(found, key=lambda s: (-s.solved, s.to_best)))

    def frame(self) -> Any:
        """The rows as a table of pandas.

        Raises `MissingDependencyError`: pandas is not installed.
        """
        return data_frame([asdict(row) for row in self.rows])

    def as_json(self) -> dict[str, Any]:
        """Rows and statistics as plain data; infinite numbers are ``null``."""
        return {
            "rows": [_finite(asdict(row)) for row in self.rows],
            "statistics": [_finite(asdict(each)) for each in self.statistics],
        }

    def __repr__(self) -> str:
        header = ("planner", "solved", "wins", "to best", "worst", "to bound", "mean time")
        rows = [
            (
                s.planner,
                f"{s.solved} of {self.problems}",
                str(s.wins),
                *(_ratio(x) for x in (s.to_best, s.worst_to_best, s.to_bound)),
                elapsed(s.seconds),
            )
            for s in self.statistics
        ]
        return plain_table(header, rows, " rrrrrr")


@checked
def bench(
    problems: Mapping[str, Any] | Sequence[Any],
    planners: Sequence[PlannerChoice] = (),
    *,
    time_limit_s: Unlimited = 10.0,
    seed: int = 0,
    progress: Progress = silent,
) -> Bench:
    """Run planners on many problems, each alone and within the same time; compare their values.

    Parameters
    ----------
    problems
        By name, as `read` gives those of a folder, or in a sequence; of any wing.
    planners
        As `solve` takes them, ``"auto"`` too; by default all that comparisons run.
    time_limit_s
        Of each planner on each problem. List schedules take what they take.

    Raises
    ------
    InputError
        There is no problem, no planner of a name, or one that is there twice.
    """
    for problem in problems.values() if isinstance(problems, Mapping) else problems:
        wing_of(problem)  # before a name is asked for
    named = problems if isinstance(problems, Mapping) else {str(p.name): p for p in problems}
    if len(named) < len(problems):
        hint = "give a dict of names and problems"
        raise InputError("two problems have the same name", where="problems", hint=hint)
    if not named:
        raise InputError("there is no problem", where="problems", hint="give at least one")
    rows: list[BenchRow] = []
    begun = time.perf_counter()
    for name, problem in named.items():
        wing = wing_of(problem)
        known = wing.planning().planners(problem)
        chosen = planners or [x for x, planner in known.items() if not on_request(planner)]
        labels = [_label(known, choice) for choice in chosen]
        check_distinct(labels)
        tried = []
        for own, choice in zip(labels, chosen, strict=True):
            took_s = time.perf_counter() - begun
            progress(what=f"{name}: {own}", value=math.inf, bound=0.0, elapsed_s=took_s)
            tried.append(_try(problem, own, choice, time_limit_s, seed))
        rows += _compared(name, tried, wing.direction, _bound(problem))
    return Bench(tuple(rows), len(named))


@dataclass(frozen=True, slots=True)
class _Try:
    planner: str
    value: float
    bound: float
    seconds: float
    note: str = ""


def _try(problem: Any, name: str, choice: PlannerChoice, time_limit_s: float, seed: int) -> _Try:
    """One planner alone; what it raises ends its own row."""
    worst, begun = wing_of(problem).direction.worst, time.perf_counter()
    try:
        found = solve(problem, choice, time_limit_s=time_limit_s, seed=seed, bounds=False)
    except Exception as error:
        note = error.brief if isinstance(error, InfeasibleError) else described(error)
        return _Try(name, worst, math.nan, time.perf_counter() - begun, note)
    return _Try(name, found.value, found.bound, found.runtime_s - found.compile_s)


def _label(known: Mapping[str, Planner], choice: PlannerChoice) -> str:
    """A planner's name with its parameters; a wrong one of them ends everything."""
    auto = auto_of(opened(choice))
    return choose(known, choice)[0] if auto is None else label({AUTO: Auto()}, auto)


def _bound(problem: Any) -> float:
    """The tightest quick bound, NaN where there is none."""
    try:
        found = quick_bounds(problem)
    except InfeasibleError:
        return math.nan
    return wing_of(problem).direction.tightest(found.values()) if found else math.nan


def _compared(
    name: str, tried: Sequence[_Try], direction: Direction, quick: float
) -> Iterator[BenchRow]:
    """The rows of one problem."""
    best = direction.best(t.value for t in tried)
    bound = direction.tightest(x for x in (quick, *(t.bound for t in tried)) if math.isfinite(x))
    for t in tried:
        ratios = (1 + direction.gap(t.value, x) for x in (best, bound))
        solved = math.isfinite(t.value)
        to_best, to_bound = (ratio if solved else math.inf for ratio in ratios)
        yield BenchRow(name, t.planner, t.value, to_best, to_bound, t.seconds, t.note)


def _statistics(
    planner: str, rows: Sequence[BenchRow], bounded: Collection[str]
) -> PlannerStatistics:
    """`bounded`: problems whose bound says something."""
    solved = [row for row in rows if row.solved]
    return PlannerStatistics(
        planner,
        len(solved),
        sum(row.won for row in rows),
        _geometric_mean(row.to_best for row in solved),
        max((row.to_best for row in solved), default=math.inf),
        _geometric_mean(row.to_bound for row in solved if row.problem in bounded),
        fmean(row.seconds for row in rows),
    )


def _geometric_mean(ratios: Iterable[float]) -> float:
    """Infinite without one."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(fmean(logarithms)) if logarithms else math.inf


def _ratio(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    infinite = (k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v))
    return row | dict.fromkeys(infinite)
