"""Operations: the verbs of the command line as resources with a schema.

`placewright.cli.service_operations` reads them. An operation turns the options of a request into
the arguments of a command:

    option                        in a request                          on the command line
    file that is written          not there, or whether it is kept      a name in the job's folder
    file that is read             the name of a stored file             its copy in the job's folder
    cluster, model, source        a stored file, a preset, zoo:NAME,    the same
                                  or a factory that the operator allows
    other text, numbers, choices  checked against their type            the same
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, create_model

from placewright.errors import InputError, UnknownNameError

EXCLUDED: Mapping[str, str] = {
    "serve": "this service itself",
    "show": "opens a browser beside the command; a job has its page here",
    "generate": "reads a folder of weights, which are not uploaded",
    "requests.serve": "listens until it is stopped: a request service has a page of its own",
    "requests.profile": "asks another address; the page of a request service finds its capacity",
    "testbed": "changes the network of the machine as root: for its administrator",
}
"""Verbs, or groups of them, that are no operations, and why."""

EXCLUDED_CHOICES: Mapping[str, str] = {
    "testbed": "changes the network of the machine as root: for its administrator",
    "torchrun": "needs processes that torchrun has started",
}
"""Values of choices that requests may not take, and why."""

EXCLUDED_OPTIONS: Mapping[str, str] = {
    "samples.run.data": "a folder, which is not uploaded",
    "samples.run.test": "a folder, which is not uploaded",
    "samples.run.resume": "a job has the files that it writes, and not those of another",
    "operators.train.resume": "a job has the files that it writes, and not those of another",
    "requests.evaluate.update": "changes the family's file, of which a job has a copy",
}
"""Options that requests may not give, and why."""

OUTPUTS: Mapping[str, str] = {
    "output": "result.json",
    "report": "report.html",
    "trace": "trace.json.gz",
    "checkpoint": "checkpoint.safetensors",
    "weights": "weights.safetensors",
    "log": "log.jsonl",
    "folder": "exported",
}
"""Names of what is written, by option; others are called as their option is."""

ALWAYS = ("output", "report")
"""Files that are written whether a request asks for them or not; not every plan has a trace."""

REPEATABLE = (
    *("plan", "compare", "simulate", "explain"),
    *("bench", "capture", "profile", "devices", "doctor", "schema", "generate"),
    "devicemap",
)
"""Verbs that compute and do nothing else: one that was lost is run again without asking."""

Text = Annotated[str, Field(max_length=10_000)]
"""A text of a request."""

MOST_ITEMS = 256
"""Of a list."""

Kind = Literal["file", "cluster", "source", "text", "name", "number", "choice", "flag"]

TEXTS = ("file", "cluster", "source", "text")
"""Kinds that a verb may read as a path; a *name* is only looked up in the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An argument or an option of a verb.

    Attributes
    ----------
    name
        As requests call it.
    flag
        What stands before its value on the command line; empty for an argument.
    off
        What sets a switch to false, if anything does.
    type
        Of its value; ``list[...]`` where it may be given several times.
    kind
        What a form offers for it.
    written
        Whether it names a file or a folder that the verb writes.
    """

    name: str
    flag: str = ""
    off: str = ""
    type: Any
    kind: Kind
    default: Any = None
    required: bool = False
    help: str
    metavar: str
    written: bool = False
    limits: tuple[float | None, float | None] = (None, None)

    @property
    def always(self) -> bool:
        """Whether it is written in every job."""
        return self.written and (self.required or self.default is not None or self.name in ALWAYS)

    def field(self) -> tuple[Any, Any]:
        """Type and description for pydantic."""
        if self.written:
            return bool, Field(False, strict=True, description=f"Keep this file: {self.help}")
        least, most = self.limits
        # Strict: true is no number, and "no" no switch.
        numbers: dict[str, Any] = {"ge": least, "le": most, "allow_inf_nan": False, "strict": True}
        given = {"number": numbers, "flag": {"strict": True}}.get(self.kind, {})
        kind = self.type
        if self.many:
            item: Any = Annotated[get_args(kind)[0], Field(**given)]
            kind, given = Annotated[list[item], Field(max_length=MOST_ITEMS)], {}
        if not self.required:
            kind = kind | None if self.default is None else kind
        default = ... if self.required else self.default
        extra: dict[str, Any] = {"x-kind": self.kind, "x-metavar": self.metavar}
        return kind, Field(default, description=self.help, json_schema_extra=extra, **given)

    @property
    def plain_default(self) -> str:
        """The default as a form has it: ``true``, ``false``, a text, or nothing."""
        if self.written or isinstance(self.default, bool):
            return str(bool(self.default) and not self.written).lower()
        return "" if self.default is None else str(self.default)

    @property
    def many(self) -> bool:
        """Whether it may be given several times."""
        return get_origin(self.type) is list

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a choice."""
        return get_args(get_args(self.type)[0] if self.many else self.type)

    def words(self, value: Any) -> Iterator[str]:
        """It on the command line."""
        if value is None or (value == self.default and not self.required):
            return
        if self.kind == "flag":
            yield from [self.flag] if value else filter(None, [self.off])
            return
        for each in value if self.many else [value]:
            yield f"{self.flag}={each}" if self.flag else str(each)


@dataclass(frozen=True)
class Operation:
    """A verb of the command line.

    Attributes
    ----------
    path
        ``("operators", "plan")``.
    summary, text
        What it does: a sentence, and all of its help.
    """

    path: tuple[str, ...]
    summary: str
    text: str
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        """``operators.plan``."""
        return ".".join(self.path)

    @property
    def wing(self) -> str | None:
        """The group of verbs that it belongs to, if it does."""
        return self.path[0] if len(self.path) > 1 else None

    @property
    def repeatable(self) -> bool:
        """Whether running it twice does no harm."""
        return self.path[-1] in REPEATABLE

    @property
    def chosen(self) -> tuple[Option, ...]:
        """The options that a request may give."""
        own = tuple(option for option in self.options if not option.always)
        return (*own, BESIDE) if any(option.kind in TEXTS for option in own) else own

    @cached_property
    def model(self) -> type[BaseModel]:
        """What the options in a request are validated by."""
        fields: dict[str, Any] = {option.name: option.field() for option in self.chosen}
        named = "".join(part.replace("-", " ").title().replace(" ", "") for part in self.path)
        return create_model(named, __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the options."""
        return self.model.model_json_schema()

    def arguments(self, given: Mapping[str, Any], outputs: str) -> list[str]:
        """The command's arguments; `outputs` is the folder of files that it writes."""
        options: list[str] = []
        positional: list[str] = []
        for option in self.options:
            value = given.get(option.name)
            if option.written:
                keep = option.always or bool(value)
                value = f"{outputs}/{OUTPUTS.get(option.name, option.name)}" if keep else None
            elif option.name not in given:
                continue
            (options if option.flag else positional).extend(option.words(value))
        return [*self.path, *options, "--", *positional]

    def command(
        self, given: Mapping[str, Any], folder: Path, outputs: str
    ) -> tuple[list[str], dict[str, str]]:
        """Arguments of its process, and environment variables that are its alone.

        Parameters
        ----------
        folder
            Its current folder, in which the stored files are that it names.
        outputs
            As `arguments` has them.
        """
        return self.arguments(given, outputs), {}

    def ending_s(self, given: Mapping[str, Any]) -> float | None:
        """For how long it finishes what it has begun; ``None``: Ctrl-C ends it."""
        return None

    def texts(self, given: Mapping[str, Any]) -> Iterator[tuple[Option, str]]:
        """Every text in the options, each of which could be read as a path or a program."""
        for option in self.chosen:
            value = given.get(option.name)
            if option.kind not in TEXTS or option.written or value is None:
                continue
            for each in value if isinstance(value, list) else [value]:
                yield option, each


BESIDE = Option(
    name="beside",
    type=list[Text],
    kind="file",
    help="Stored files that lie beside those that are named, which may refer to them by name.",
    metavar="FILE",
)
"""An option of requests alone: in a terminal such files are in the folder already."""


def offered(operations: Iterable[Operation]) -> dict[str, Operation]:
    """Those that requests may start, by name."""
    return {each.name: each for each in operations if not {each.name, each.path[0]} & {*EXCLUDED}}


OPENVINO = "openvino"
"""Stands before models of any kind that OpenVINO executes."""

FORBIDDEN = re.compile(r"[/\\\x00-\x1f\x7f]|^\.+$|^-")
"""What no text of a request may have: a way out of the job's folder, or another option."""


class Stored(Protocol):
    """Names of stored files: whether there is one, and some of them."""

    def __contains__(self, name: object, /) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...


def used_file(option: Option, text: str, stored: Stored, allowed: Collection[str]) -> str | None:
    """The stored file that a text of a request names, ``None`` where it names none.

    A verb may read any text as a path, a model or a planner's file. Its process works in a folder
    that holds nothing but copies of stored files: a text without a slash cannot lead out of it. A
    text with a colon is taken only where what stands behind it is known to be harmless, since
    ``package.module:factory`` is code.

    Parameters
    ----------
    stored
        Names of stored files.
    allowed
        Factories that the operator allows, ``package.module:factory``.

    Raises
    ------
    InputError
        The text is refused.
    """
    if text in allowed:
        return None
    if FORBIDDEN.search(text) or FORBIDDEN.search(unquote(text)):  # as options behind ? are read
        raise InputError(
            "paths are not taken from requests",
            where=option.name,
            by=f"got {text!r:.200}",
            hint="upload the file, and give its name",
        )
    scheme, _, rest = text.rpartition(":")
    name = rest.partition("?")[0].removeprefix("@")
    if name in stored and not name.endswith(".py") and (not scheme or scheme in _schemes()):
        return name
    if option.kind == "file":
        raise UnknownNameError("file", text, stored, where=option.name)
    _refuse_code(option, text, allowed)
    return None


SHIPPED = re.compile(rf"(?:{OPENVINO}:)?zoo:\w+")
"""Models that ship with Placewright, also for another runtime."""

NUMBERED = re.compile(r"[^:]+(?::[-+]?\d[\d.eE+-]*)+")
"""Names with numbers, as in ``board-a:0.5``; where a model may stand this would be a module."""

ONE_DEVICE = re.compile(r"only:[^:]+")
"""Planners that put all on one device: no planner is looked for in a module of this name."""


def _schemes() -> set[str]:
    """What may stand before a file's name; anything else would be taken for a module."""
    from placewright.files import formats

    return {*formats(), OPENVINO}


def _refuse_code(option: Option, text: str, allowed: Collection[str]) -> None:
    if ":" not in text or SHIPPED.fullmatch(text):
        return
    if option.kind == "text" and NUMBERED.fullmatch(text):
        return
    if option.name == "planner" and ONE_DEVICE.fullmatch(text):
        return
    listed = ", ".join(sorted(allowed)) or "none"
    raise InputError(
        "is neither a stored file nor a model that this service may run",
        where=option.name,
        by=f"got {text!r:.200}",
        hint=f"upload the file, give zoo:NAME, or serve with --models; allowed: {listed}",
    )
