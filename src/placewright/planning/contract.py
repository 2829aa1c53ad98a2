"""The contract between `solve` and planners, judges and bounds.

A planner gets a problem and a `Context` and answers with a plan or a `Proposal`; the judge, and
only the judge, computes the plan's value. `placewright.planning.wing` has what else a wing offers.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

from placewright.errors import InputError
from placewright.io.arguments import LARGEST as LARGEST
from placewright.io.arguments import AnyNumber, NumberOrUnknown, Unlimited, checked, described_value
from placewright.io.arguments import Count as Count
from placewright.io.arguments import Range as Range
from placewright.io.arguments import Share as Share

if TYPE_CHECKING:
    from placewright.report.trace import Trace


PlanType = TypeVar("PlanType", covariant=True)
Found = TypeVar("Found")


class Direction(StrEnum):
    """Which values of an objective are better, and what that makes of bounds.

    Where the objective is minimised no plan has a smaller value than a bound, and the largest
    bound is the tightest; where it is maximised it is the other way round.
    """

    MINIMISE = "minimise"
    MAXIMISE = "maximise"

    @property
    def sign(self) -> int:
        """Of the step from a value to a worse one."""
        return 1 if self is Direction.MINIMISE else -1

    @property
    def worst(self) -> float:
        """The value that every other one is better than: that of no plan."""
        return math.inf if self is Direction.MINIMISE else -math.inf

    @property
    def unproved(self) -> float:
        """The bound that says nothing, where values that are minimised are never negative."""
        return 0.0 if self is Direction.MINIMISE else math.inf

    @property
    def bound_name(self) -> str:
        """``lower bound``, or ``upper bound`` where larger values are better."""
        return "lower bound" if self is Direction.MINIMISE else "upper bound"

    def better(self, value: float, other: float) -> bool:
        """Whether `value` is better than `other`; of two bounds: whether it is looser."""
        return value < other if self is Direction.MINIMISE else value > other

    def best(self, values: Iterable[float]) -> float:
        """The best value; `worst` where there is none."""
        choose = min if self is Direction.MINIMISE else max
        return choose(values, default=self.worst)

    def tightest(self, bounds: Iterable[float]) -> float:
        """The tightest bound; `unproved` where there is none."""
        choose = max if self is Direction.MINIMISE else min
        return choose(bounds, default=self.unproved)

    def gap(self, value: float, bound: float) -> float:
        """By which share of the smaller of the two a better plan could differ from `value`.

        Zero where they are equal, ``inf`` without a plan or a bound.
        """
        if value == bound:
            return 0.0
        low, high = (bound, value) if self is Direction.MINIMISE else (value, bound)
        return high / low - 1.0 if low > 0 and math.isfinite(high) else math.inf


class Judgement(Protocol):
    """The answer of a wing's judge."""

    @property
    def value(self) -> float:
        """Objective of the plan; `Wing.direction` says which way is better."""
        ...

    @property
    def feasible(self) -> bool:
        """Whether every hard constraint holds."""
        ...

    @property
    def violation(self) -> str:
        """The worst broken constraint in words, empty if none is."""
        ...

    @property
    def violation_size(self) -> float:
        """By how much constraints are broken (bytes, samples, ...): tells near misses apart."""
        ...

    @property
    def metrics(self) -> Mapping[str, tuple[float, str]]:
        """Other measures of the plan: name -> value and unit (``s``, ``bytes``, or empty)."""
        ...

    def trace(self) -> Trace | None:
        """Which device ran what when; ``None`` where plans have no timeline."""
        ...


if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    PlanT = TypeVarWithDefault("PlanT", covariant=True, default=Any)
    JudgementT = TypeVarWithDefault("JudgementT", bound=Judgement, covariant=True, default=Any)
else:
    PlanT, JudgementT = TypeVar("PlanT", covariant=True), TypeVar("JudgementT", covariant=True)


class Problem(Protocol[PlanT, JudgementT]):
    """Base of problems, which tells type checkers what plans and judgements of them are.

    A wing's problem may inherit ``Problem[MyPlan, MyJudgement]``; one that does not is solved
    alike, and results of it are of type `Any`.
    """

    __slots__ = ()


Objective: TypeAlias = Callable[[Any], float]
"""Of one's own: the value of a plan as a function of its judgement."""


@dataclass(frozen=True, slots=True)
class OwnJudgement:
    """A judgement with the value of another objective; all else is the judge's."""

    judgement: Any
    value: float

    def __getattr__(self, name: str) -> Any:
        if name in type(self).__slots__:  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.judgement, name)


class Progress(Protocol):
    """Called now and then with the state of a search. The command line shows it as a bar."""

    def __call__(self, *, what: str, value: float, bound: float, elapsed_s: float) -> None:
        """Best value and bound so far; `what` names the current step."""
        ...


def silent(*, what: str, value: float, bound: float, elapsed_s: float) -> None:
    """Progress that is not shown."""


@checked
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
        ``judge(problem, plan)``: the wing's judge, for planners that improve on its values.
    progress
        To be called at most a few times per second.
    incumbent
        The best plan so far that fits, for planners that start from one.
    bound
        No plan is better than this; a planner that reaches it may stop.
    measure
        Executes plans and times them, for planners that learn from measured runs; ``None`` where
        nothing can be executed.
    objective
        A function of the caller's whose values `judge` gives; ``None`` for the problem's own.
    """

    seed: int = 0
    deadline_s: float = float("inf")
    judge: Callable[[Any, Any], Any] | None = None
    progress: Progress = silent
    incumbent: Any = None
    bound: AnyNumber = 0.0
    measure: Any = None
    objective: Objective | None = None

    @property
    def giving_up_s(self) -> float:
        """The deadline where there is a plan already, else ``inf``.

        For planners that have no plan before their end.
        """
        return math.inf if self.incumbent is None else self.deadline_s

    def remaining_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline_s - time.perf_counter()

    def later(self, seconds: float) -> Context:
        """The same with a later deadline."""
        return replace(self, deadline_s=self.deadline_s + seconds)

    @checked
    def part(self, share: Share) -> Context:
        """The same, with this share of the time to the deadline."""
        if math.isinf(self.deadline_s):
            return self
        now = time.perf_counter()
        return replace(self, deadline_s=now + (self.deadline_s - now) * share)


@checked
@dataclass(frozen=True, slots=True)
class Proposal(Generic[PlanType]):
    """A planner's answer: a plan, and what the planner knows about it.

    Attributes
    ----------
    bound
        Proved: no plan of the problem is better. ``None`` where nothing was proved.
    resolution
        A solver that counts in whole numbers has searched to its end: values that are worse than
        `bound` by no more than this cannot be told from it, and count as optimal.
    interrupted
        Ctrl-C ended the search; the plan is the best so far.
    note
        What else to say in the table of candidates, for example why nothing was proved.
    """

    plan: PlanType
    bound: NumberOrUnknown | None = None
    resolution: float = 0.0
    interrupted: bool = False
    note: str = ""


def proposal_of(answer: Any) -> Proposal[Any]:
    """A planner's answer as a proposal; a plan alone claims nothing."""
    return answer if isinstance(answer, Proposal) else Proposal(answer)


def last_of(finds: Iterable[Found]) -> tuple[Found, bool]:
    """The last of a search's finds, each better than the one before, and whether Ctrl-C came.

    Raises `KeyboardInterrupt`: it came before anything was found.
    """
    found: list[Found] = []
    try:
        for better in finds:
            found = [better]
    except KeyboardInterrupt:
        if not found:
            raise
        return found[0], True
    return found[0], False


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
        """A plan, or a `Proposal` where something is known about it. It never scores itself."""
        ...


class TakesEveryProblem:
    """The part of a planner that leaves no problem to others."""

    __slots__ = ()

    def unsupported_reason(self, problem: Any) -> str | None:
        """Never one."""
        return None


@checked
@dataclass(frozen=True, slots=True)
class Needs:
    """What a planner needs for a problem, roughly.

    `seconds`: before it looks at the clock; it may take twice as many.
    `bytes`: of memory, beside the problem.
    `ends`: that is all, whatever the deadline: no search follows.
    """

    seconds: Unlimited = 0.0
    bytes: Unlimited = 0.0
    ends: bool = False


def needs_of(planner: Planner, problem: Any) -> Needs:
    """What `planner.needs(problem)` estimates; nothing where it has no such method."""
    estimate = getattr(planner, "needs", None)
    found = Needs() if estimate is None else estimate(problem)
    if not isinstance(found, Needs):
        by, hint = f"got {described_value(found)}", "return Needs, or leave the method out"
        raise InputError("must return Needs", where=f"{planner.name}: needs", by=by, hint=hint)
    return found


def on_request(planner: Planner) -> bool:
    """Whether ``auto`` and comparisons run it only if it is named: its class says `on_request`."""
    return bool(getattr(planner, "on_request", False))


def runs_beside(planner: Planner) -> bool:
    """Whether ``auto`` may begin it before its turn, in a thread: its class says `beside`.

    It releases the interpreter's lock most of the time, does not start from the incumbent, and
    neither judges by the context nor reports progress.
    """
    return bool(getattr(planner, "beside", False))


class Simplifier(Protocol):
    """The last step of ``auto``: of plans that are about equally good, the simplest."""

    @property
    def name(self) -> str:
        """Of its plan in tables."""
        ...

    @property
    def never_behind(self) -> Sequence[str]:
        """Planners whose plans the answer must not be worse than, whatever the tolerance."""
        ...

    def tolerance(self, problem: Any, plan: Any) -> float:
        """What the judge errs by for plans like this one: a share of their value."""
        ...

    def unsupported_reason(self, problem: Any) -> str | None:
        """``None`` if it can take the problem, else why not."""
        ...

    def __call__(
        self, problem: Any, plans: Sequence[Any], tolerance: float, context: Context
    ) -> Any:
        """The simplest plan found, one of `plans` itself where none is simpler, or a `Proposal`.

        `plans` fit, and are at most `tolerance` worse than the best, which is the first one; so
        must the answer be, or it is not used.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundContext:
    """What is known when refined bounds are computed.

    Attributes
    ----------
    value
        Of the best plan that fits; `Direction.worst` where there is none.
    bound
        The tightest one so far.
    deadline_s
        ``time.perf_counter()`` value at which they should be done.
    auto
        ``auto`` was asked for, not planners by name.
    """

    value: float
    bound: float
    deadline_s: float
    auto: bool


LOG = logging.getLogger("placewright")

Names = tuple[str, str, str]
"""Labels of the value, of the lower bound and of the gap between them; an empty one is hidden."""

SEARCH: Names = ("best", "bound", "gap")
STEPS: Names = ("a step takes", "predicted", "")
"""A running plan: the median step, and its predicted duration."""


class Meter(Progress, Protocol):
    """Receives the progress of one phase."""

    def step(self, what: str) -> None:
        """Name the current step of a phase that has no value."""


class Monitor(Protocol):
    """Receives notes, and a meter's worth of progress for every phase."""

    def note(self, text: str) -> None:
        """Receive one line on what was found or decided."""

    def meter(self, title: str, names: Names = SEARCH) -> AbstractContextManager[Meter]:
        """Begin a phase; it ends with the ``with`` block."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A monitor that hands progress to a function and notes to the logger ``placewright``."""

    progress: Progress = silent

    def note(self, text: str) -> None:
        """Log the line at level INFO."""
        LOG.info("%s", text)

    @contextmanager
    def meter(self, title: str, names: Names = SEARCH) -> Iterator[Meter]:
        """Prefix every step of the phase with its title."""
        yield _Forward(self.progress, title, time.perf_counter())


@dataclass(frozen=True, slots=True)
class _Forward:
    """A meter that forwards to `Listener.progress`."""

    progress: Progress
    title: str
    start: float

    def __call__(self, *, what: str, value: float, bound: float, elapsed_s: float) -> None:
        self.progress(
            what=f"{self.title}: {what}",
            value=value,
            bound=bound,
            elapsed_s=elapsed_s,
        )

    def step(self, what: str) -> None:
        elapsed_s = time.perf_counter() - self.start
        self(what=what, value=math.inf, bound=0.0, elapsed_s=elapsed_s)


def monitor_of(progress: Progress | Monitor) -> Monitor:
    """The monitor itself, or one that forwards to a progress function."""
    if hasattr(progress, "meter"):
        return cast(Monitor, progress)
    return Listener(progress)
