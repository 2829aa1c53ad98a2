"""`Wing`: what a family of problems offers to the rest of the package, in parts.

`solve`, the command line, files, pages and the conformance kit know of a wing only what stands in
its `Wing` object. Most parts are functions without arguments that import and return a module (or
any other object) with the attributes that the part's protocol lists, so that naming a wing loads
none of its planners, pages or file formats.

A wing that runs language models gives `LanguageModels` to a server of text, of another wing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from placewright.io.arguments import checked
from placewright.planning.contract import (
    BoundContext,
    Direction,
    Judgement,
    Planner,
    Proposal,
    Simplifier,
)
from placewright.report.text import plain_table

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from placewright.cluster.cluster import Cluster
    from placewright.io.boundary import FileModel
    from placewright.measurement import Measurement
    from placewright.planning.result import Result


class Planning(Protocol):
    """Planners, judge and bounds: all that `solve` needs. Inherit it for the defaults.

    A module may have besides, for `placewright.planning.wings.Judge`: ``plan_of(problem, given)``,
    a plan in other forms than the wing's plan type, and ``prepared_judge(problem)``, which is laid
    out once: called with a plan it judges it, and ``values(plans)`` gives the values of many.
    """

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

    def rehearsals(self) -> Sequence[Callable[[], object]]:
        """Calls that compile the kernels of planners, those first which ``auto`` needs late.

        The list itself must compile nothing.
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

    def fields(self, part: str = "") -> list[dict[str, Any]]:
        """What is written in one line each: name, default, and whether it is required.

        `part`: the model of a part of the file, by its name, instead of the whole.
        """
        schema = self.model.model_json_schema()
        schema = schema["$defs"][part] if part else schema
        required = schema.get("required", ())
        found = []
        for name, each in schema["properties"].items():
            kinds = {kind.get("type") for kind in each.get("anyOf", (each,))}
            if kinds & {"number", "integer", "string"} and name != "schema_version":
                default = each.get("default")
                default = "" if default is None else default
                found.append({"name": name, "required": name in required, "default": default})
        return sorted(found, key=lambda field: not field["required"])


def _has(data: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True


@dataclass(frozen=True, slots=True)
class Format:
    """A published format of problems, whose files are called ``NAME:FILE``.

    Attributes
    ----------
    title
        What such a file is, in a few words.
    read
        ``read(path, **options)``: the problem. Options may follow the file's name as text:
        ``NAME:FILE?memory=16GiB`` for ``memory_bytes``.
    """

    name: str
    title: str
    read: Callable[..., Any]


class Files(Protocol):
    """The wing's documents: problems, and results with a plan.

    A module may have ``formats`` besides: published formats of its problems, each a `Format`.
    """

    @property
    def problem_document(self) -> Document:
        """How a problem file is recognised, and its schema."""
        ...

    @property
    def plan_document(self) -> Document:
        """The same for what a result writes: see `placewright.planning.result`."""
        ...

    def read_problem(self, path: str | Path) -> Any:
        """Read a problem file; `InputError` names the file and the field that is wrong."""
        ...

    def problem_from(self, data: Any, *, where: str, name: str) -> Any:
        """The problem of a file's data; `where` names them in errors."""
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

        Their first parameter is the console. A parameter that has no annotation for typer gets the
        option of its name in `placewright.cli.console.SHARED`: ``planner``, ``on``, ``report``.
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
    """Problems for the conformance kit (`placewright.testing`)."""

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


@checked
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
    signed
        Whether values that are minimised may be negative: then nothing bounds them beforehand.
    unit
        Of values: ``s`` and ``bytes`` are printed with a prefix (``12 ms``), others as they are.
    views, command_line, conformance
        Pages and tables; options and verbs; problems to test planners on. Generic ones, or none,
        where there is nothing of the wing's own.
    explain
        ``explain(problem, plan, name)``: why a named part of the plan is as it is.
    places_models
        Problems are also made of models, captured and profiled on a cluster, and their plans are
        executed as placed models. Both lie above the wings, so the command line adds those sources
        and verbs where this is set.
    simplifier
        The last step of ``auto``: of plans that are about equally good, the simplest.
    families
        Further kinds of problems that the same command group plans, each with planners, judge,
        files and direction of its own: all of a wing but a command line.
    language
        Language models on the devices of a cluster, for a server of text.
    """

    name: str
    title: str
    problem_type: Callable[[], type]
    plan_type: Callable[[], type]
    planning: Callable[[], Planning]
    files: Callable[[], Files]
    direction: Direction = Direction.MINIMISE
    signed: bool = False
    unit: str = "s"
    views: Callable[[], Views] | None = None
    command_line: Callable[[], CommandLine] | None = None
    conformance: Callable[[], Conformance] | None = None
    explain: Callable[[Any, Any, str], Explanation] | None = None
    places_models: bool = False
    simplifier: Callable[[], Simplifier] | None = None
    families: Sequence[Callable[[], Wing]] = ()
    language: Callable[[], LanguageModels] | None = None


def package_wing(
    package: str,
    title: str,
    problem: str,
    plan: str,
    *,
    planning: str = "planners",
    views: str = "views",
    conformance: str = "conformance",
    command_line: str = "commands",
    **given: Any,
) -> Wing:
    """The wing of a package whose modules have the usual names.

    Besides those that are given it is `files`; each is imported when it is first needed.

    `problem`, `plan`: names within the package, as ``"problem.MyProblem"``.
    `planning`, `views`, `conformance`, `command_line`: modules, or objects in them; those of the
    folder above begin with two points, and what is empty the wing has not. A module of views has
    `explain`, too.
    `given`: further fields of `Wing`; of `families` the names: ``"flow.FLOW"``.
    """

    def part(where: str) -> Callable[[], Any]:
        above = where.startswith("..")
        module, _, name = where.lstrip(".").partition(".")

        def load() -> Any:
            found = import_module(f"..{module}" if above else f".{module}", package)
            return getattr(found, name) if name else found

        return load

    return Wing(
        package.removeprefix("placewright."),
        title,
        part(problem),
        part(plan),
        part(planning),
        part("files"),
        views=part(views),
        command_line=part(command_line) if command_line else None,
        conformance=part(conformance),
        explain=None if "." in views else lambda *asked: part(f"{views}.explain")()(*asked),
        **given | {"families": tuple(map(part, given.get("families", ())))},
    )


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """What a part does in a plan and costs there, and what other plans would be worth.

    `facts`: name -> value with its unit.
    `changes`: what could be done instead -> value of that plan, or why it is not possible.
    """

    name: str
    facts: dict[str, str]
    changes: dict[str, str]
    value: str = "step time"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "facts": self.facts, "changes": self.changes}

    def __str__(self) -> str:
        parts = [f"{self.name}", plain_table(("", ""), list(self.facts.items()))]
        if self.changes:
            parts.append(plain_table(("instead", self.value), list(self.changes.items())))
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, and when a text ends; ``None`` is what the model's folder says.

    Attributes
    ----------
    new_tokens
        At most so many.
    temperature
        0 takes the likeliest token.
    top_p
        Of the likeliest tokens, those that have this probability together.
    seed
        The same seed gives the same tokens; without one they differ.
    stop
        Texts before which the text ends.
    continues
        Whether the text goes on with that of the prompt, a space between them included.
    """

    new_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a text.

    `new_tokens`: that were generated; `reason`: ``stop`` at the model's own end or a text of
    `Sampling.stop`, ``length`` at `Sampling.new_tokens`.
    """

    new_tokens: int
    reason: Literal["stop", "length"]


class TextModel(Protocol):
    """A language model that several users may ask at the same time, each in a thread."""

    @property
    def name(self) -> str:
        """What clients call it."""
        ...

    @property
    def context(self) -> int:
        """Tokens of a prompt and its answer together, at most."""
        ...

    @property
    def users(self) -> int:
        """Texts that may be generated at the same time."""
        ...

    def prompt(self, given: str | Sequence[int]) -> list[int]:
        """Tokens of a prompt; `InputError`: there is no tokenizer, or no such token."""
        ...

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation; `InputError`: there is no template for one."""
        ...

    def generate(
        self,
        tokens: Sequence[int],
        how: Sampling,
        put: Callable[[str], object],
        left: Callable[[], bool],
    ) -> Ended:
        """Generate a text.

        Parameters
        ----------
        put
            Called with each piece of the text when it is known.
        left
            Whether nobody waits for the text any more, which ends it.

        Raises
        ------
        RunError
            A worker died.
        """
        ...

    def as_json(self) -> dict[str, Any]:
        """Which device holds what, and the predicted times, as data."""
        ...


class LanguageModels(Protocol):
    """Language models on the devices of a cluster."""

    def text_model(
        self,
        folder: Path,
        cluster: Cluster,
        *,
        context: int | None = None,
        users: int = 1,
        engine: Literal["local", "testbed", "torchrun", "ray"] = "local",
    ) -> AbstractContextManager[TextModel]:
        """Load a model on workers for the length of the block.

        Parameters
        ----------
        folder
            With ``config.json`` and safetensors.
        context
            Tokens that are kept of each user; by default as many as fit.
        """
        ...
