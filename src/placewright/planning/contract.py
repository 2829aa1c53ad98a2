"""The contract between the package and a wing: `Wing`, its parts, and what planners are given.

`solve`, the command line, files, pages and the conformance kit know of a wing only what stands in
its `Wing` object. Most parts are functions without arguments that import and return a module (or
any other object) with the attributes that the part's protocol lists, so that naming a wing loads
none of its planners, pages or file formats.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from placewright.io.boundary import FileModel
    from placewright.planning.result import Measurement, Result
    from placewright.planning.trace import Trace

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
        """The bound that says nothing; values that are minimised are never negative."""
        return 0.0 if self is Direction.MINIMISE else math.inf

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


class Progress(Protocol):
    """Called now and then with the state of a search. The command line shows it as a bar."""

    def __call__(self, *, what: str, value: float, bound: float, elapsed_s: float) -> None:
        """Best value and bound so far; `what` names the current step."""
        ...


def silent(*, what: str, value: float, bound: float, elapsed_s: float) -> None:
    """Progress that is not shown."""


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
    """

    seed: int = 0
    deadline_s: float = float("inf")
    judge: Callable[[Any, Any], Any] | None = None
    progress: Progress = silent
    incumbent: Any = None
    bound: float = 0.0

    def remaining_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline_s - time.perf_counter()


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
    bound: float | None = None
    resolution: float = 0.0
    interrupted: bool = False
    note: str = ""


def proposal_of(answer: Any) -> Proposal[Any]:
    """A planner's answer as a proposal; a plan alone claims nothing."""
    return answer if isinstance(answer, Proposal) else Proposal(answer)


def last_of(finds: Iterable[Found]) -> tuple[Found, bool]:
    """The last of a search's finds, each better than the one before, and whether Ctrl-C came.

    Raises
    ------
    KeyboardInterrupt
        It came before anything was found.
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


class Planning(Protocol):
    """Planners, judge and bounds: all that `solve` needs. Inherit it for the defaults."""

    def planners(self, problem: Any) -> Mapping[str, Planner]:
        """The planners of a problem by name (single-device planners depend on it)."""
        ...

    def portfolio(self, problem: Any) -> Sequence[str]:
        """Names of the planners that ``auto`` runs, in order."""
        return list(self.planners(problem))

    def judge(self, problem: Any, plan: Any) -> Judgement:
        """The value of a plan; the only code that computes it."""
        ...

    def bounds(self, problem: Any) -> Mapping[str, float]:
        """Bounds by name that are quick to compute."""
        return {}

    def refined_bounds(
        self, problem: Any, known: BoundContext
    ) -> Mapping[str, float] | Iterable[tuple[str, float]]:
        """Bounds that take long: computed after the planners, unless the gap is closed by then.

        By name, or one after another as they are proved, each tighter: Ctrl-C keeps those.
        """
        return {}

    def refined_s(self, problem: Any, limit_s: float) -> float:
        """Seconds of ``auto``'s time limit that are kept for `refined_bounds`."""
        return 0.0

    def objective(self, problem: Any) -> str:
        """What is minimised or maximised, in a few words."""
        return str(problem.objective)

    def baselines(self, problem: Any) -> Sequence[str]:
        """Names of the planners that a plan is compared with: what one would do without planning.

        The best of them that fits is the baseline of pages and measured comparisons.
        """
        return ()


@dataclass(frozen=True, slots=True)
class Document:
    """A kind of file.

    Attributes
    ----------
    kind
        As `placewright schema` calls it.
    keys
        Dotted paths of keys that all these files have and no other document has together.
    model
        Its pydantic model: the JSON schema, and what a file is validated against.
    """

    kind: str
    keys: tuple[str, ...]
    model: type[FileModel]

    def matches(self, data: Mapping[str, Any]) -> bool:
        """Whether `data` has all the keys."""
        return all(_has(data, key.split(".")) for key in self.keys)


def _has(data: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True


class Files(Protocol):
    """The wing's documents: problems, and results with a plan."""

    @property
    def problem_document(self) -> Document:
        """How a problem file is recognised, and its schema."""
        ...

    @property
    def plan_document(self) -> Document:
        """The same for what a result writes: see `placewright.planning.result_file`."""
        ...

    def read_problem(self, path: str | Path) -> Any:
        """Read a problem file; `InputError` names the file and the field that is wrong."""
        ...

    def write_problem(self, problem: Any, path: str | Path) -> Path:
        """Write a file that `read_problem` reads back equal."""
        ...

    def read_proposal(self, path: str | Path, problem: Any) -> Proposal[Any]:
        """Read the plan of a result file for `problem`.

        What was proved is part of it only if that was about the very same problem.
        """
        ...

    def result_json(self, result: Result) -> dict[str, Any]:
        """What ``-f json`` prints and `Result.save` writes; infinite numbers are ``null``."""
        ...


class Views(Protocol):
    """How the wing's results are shown, beside what is shown of every wing's."""

    def summary(self, result: Result, measurement: Measurement | None = None) -> str:
        """Lines that follow the candidates on a terminal, empty if there are none."""
        ...

    def page(
        self,
        result: Result,
        measurement: Measurement | None = None,
        graph: Any = None,
        run: Any = None,
    ) -> str:
        """The self-contained HTML page of a result."""
        ...

    def fragment(self, result: Result) -> str:
        """What a notebook shows."""
        ...

    def saved_page(self, kind: str, data: dict[str, Any], path: Path) -> str:
        """The page of a file of one of the wing's kinds."""
        ...


class Explanation(Protocol):
    """Why a part of a plan is as it is; ``str()`` of it is for a terminal."""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A problem from the command line, and the graph that it was made of, if it was of one."""

    problem: Any
    graph: Any = None


class CommandLine(Protocol):
    """What ``placewright WING`` offers beside the generic verbs' own options."""

    @property
    def load(self) -> Callable[..., Any]:
        """The source: a function annotated for typer whose parameters become those of each verb.

        Its first parameter is the `placewright.cli.console.Console`, which is not an option. It
        returns a `Loaded`, or an object with the same attributes.
        """
        ...

    @property
    def verbs(self) -> Mapping[str, Callable[..., None]]:
        """Verbs that only this wing has, by name: functions annotated for typer.

        Their first parameter is the console. Parameters named ``planner``, ``time_limit``,
        ``seed``, ``report`` and ``trace`` get the options that the generic verbs have.
        """
        ...

    @property
    def examples(self) -> Mapping[str, Sequence[str]]:
        """Arguments of each verb, as ``--help`` shows them."""
        ...


@dataclass(frozen=True, slots=True)
class FileCommandLine:
    """A command line without verbs of its own."""

    load: Callable[..., Any]
    verbs: Mapping[str, Callable[..., None]] = field(default_factory=dict)
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Conformance(Protocol):
    """Problems for the conformance kit (`placewright.testing.conformance`)."""

    def tiny_instances(self) -> Mapping[str, Any]:
        """Named problems that planners get wrong, each as small as it can be."""
        ...

    def random_problems(self) -> SearchStrategy[Any]:
        """A hypothesis strategy of small problems with every kind of constraint."""
        ...

    def check_plan(self, problem: Any, plan: Any) -> None:
        """Raise where the plan is none of this problem."""
        ...

    def same_plan(self, plan: Any, other: Any) -> bool:
        """Whether two plans of one problem are equal to the last bit."""
        ...


@dataclass(frozen=True, slots=True)
class Wing:
    """A family of problems: everything that the rest of the package knows of it.

    Attributes
    ----------
    name
        The command-line group, and the entry-point group ``placewright.NAME.planners``.
    title
        What is decided, in a few words: ``operators -> devices``.
    problem_type, plan_type
        Functions that import and return frozen dataclasses. A problem has `name` and `hash()`.
    planning
        Planners, judge, bounds.
    files
        File formats.
    direction
        Whether values are minimised or maximised.
    unit
        Of values: ``s`` and ``bytes`` are printed with a prefix (``12 ms``), others as they are.
    views, command_line, conformance
        Pages and tables; options and verbs; problems to test planners on. Generic ones, or none,
        where there is nothing of the wing's own.
    explain
        ``explain(problem, plan, name)``: why a named part of the plan is as it is.
    """

    name: str
    title: str
    problem_type: Callable[[], type]
    plan_type: Callable[[], type]
    planning: Callable[[], Planning]
    files: Callable[[], Files]
    direction: Direction = Direction.MINIMISE
    unit: str = "s"
    views: Callable[[], Views] | None = None
    command_line: Callable[[], CommandLine] | None = None
    conformance: Callable[[], Conformance] | None = None
    explain: Callable[[Any, Any, str], Explanation] | None = None
