"""The contract between solve, planners, judges and bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from placewright.planning.result import Judgement

INTERRUPTED = "interrupted"
"""`note` of a plan that a planner hands back because it was interrupted."""


class Progress(Protocol):
    """Told now and then how far a search is. The command line shows it as a bar."""

    def __call__(self, *, what: str, value: float, lower_bound: float, elapsed_s: float) -> None:
        """Best value and bound so far; `what` names the current step."""
        ...


def silent(*, what: str, value: float, lower_bound: float, elapsed_s: float) -> None:
    """Progress that nobody sees."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a planner is given beside the problem.

    Attributes
    ----------
    seed
        All randomness comes from it: ``numpy.random.default_rng(context.seed)``.
    deadline_s
        ``time.perf_counter()`` value after which an anytime planner must return.
    judge
        ``judge(problem, plan)``: the wing's judge, for planners that improve on its word.
    progress
        To be called at most a few times per second.
    incumbent
        The best plan so far that fits, for planners that start from one.
    lower_bound
        What is known to be unbeatable; a planner that reaches it may stop.
    """

    seed: int = 0
    deadline_s: float = float("inf")
    judge: Callable[[Any, Any], Any] | None = None
    progress: Progress = silent
    incumbent: Any = None
    lower_bound: float = 0.0

    def remaining_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline_s - time.perf_counter()


class Planner(Protocol):
    """A final frozen dataclass whose fields are its parameters."""

    @property
    def name(self) -> str:
        """The name on the command line and in tables."""
        ...

    def unsupported_reason(self, problem: Any) -> str | None:
        """``None`` if the planner can take the problem, else why not."""
        ...

    def __call__(self, problem: Any, context: Context) -> Any:
        """A plan. It never scores itself."""
        ...


@dataclass(frozen=True, slots=True)
class BoundContext:
    """What is known when late bounds are asked.

    Attributes
    ----------
    value
        Of the best plan that fits; ``inf`` where there is none.
    lower_bound
        The highest one yet.
    deadline_s
        ``time.perf_counter()`` value at which they should be done.
    auto
        ``auto`` was asked, not planners by name.
    """

    value: float
    lower_bound: float
    deadline_s: float
    auto: bool


@dataclass(frozen=True, slots=True)
class Wing:
    """What one wing offers to `placewright.planning.solving.solve`.

    Attributes
    ----------
    planners
        Maps a problem to its planners by name (single-device planners depend on it).
    portfolio
        The names that ``auto`` tries, in order.
    bounds
        Maps a problem to lower bounds by name.
    late_bounds
        Bounds that take long: asked after the planners, unless the gap is closed by then. By name,
        or one after another as they are proved, the later ones higher: Ctrl-C keeps those.
    late_s
        How many seconds of ``auto``'s time limit are kept for them.
    files
        The module that writes results: its `result_json` and `write_plan`.
    """

    name: str
    problem_type: type
    planners: Callable[[Any], Mapping[str, Planner]]
    portfolio: Callable[[Any], Sequence[str]]
    judge: Callable[[Any, Any], Judgement]
    bounds: Callable[[Any], Mapping[str, float]]
    describe: Callable[[Any], str] = field(default=lambda problem: str(problem.objective))
    refined_bounds: Callable[
        [Any, BoundContext], Mapping[str, float] | Iterable[tuple[str, float]]
    ] = field(default=lambda p, known: {})
    refined_s: Callable[[Any, float], float] = field(default=lambda problem, limit_s: 0.0)
    files: str = "placewright.operators.files"
