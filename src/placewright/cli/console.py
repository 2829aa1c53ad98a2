"""The console of a verb: data on stdout in the chosen format, progress and notes on stderr.

`console_command` makes a typer command of a verb: its own parameters, and the options that every
verb has, which make the console.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from placewright.cli import options
from placewright.errors import PlacewrightError
from placewright.planning.contract import SEARCH, Names
from placewright.report.text import printable

if TYPE_CHECKING:
    from placewright.adapt.timeline import Timeline
    from placewright.graph.graph import Graph
    from placewright.measurement import Measurement
    from placewright.planning.result import Result


VISIBLE_AFTER_S = 0.3
"""Phases that end sooner print nothing."""


@dataclass(frozen=True, slots=True)
class Console:
    """The options that every verb has.

    Attributes
    ----------
    format
        What stdout shows.
    output
        Where the document is kept as well.
    quiet
        No progress, no notes.
    verbose
        How often ``-v`` was given.
    """

    format: options.Format = "table"
    output: Path | None = None
    quiet: bool = False
    verbose: int = 0

    def show(self, data: Callable[[], Any], table: Callable[[], Any]) -> None:
        """Print the table or the data; the other one is not computed.

        Where the reader has left, what is behind it goes on: files that were asked for are written.
        """
        made = table() if self.format == "table" else document(data(), self.format)
        try:
            if self.format == "table":
                _print_table(made)
            else:
                sys.stdout.write(made)
        except BrokenPipeError:
            leave_stdout()

    def keep(self, data: Callable[[], Any]) -> None:
        """Write the document to ``-o FILE``, if that was given."""
        if self.output is not None:
            style = "yaml" if self.output.suffix in (".yaml", ".yml") else "json"
            self.kept(write(self.output, document(data(), style)))

    def answer(self, data: Callable[[], Any], table: Callable[[], Any]) -> None:
        """Print the table or the data, and write the data to ``-o FILE``, if that was given."""
        self.show(data, table)
        self.keep(data)

    def kept(self, path: Path) -> None:
        """Say on stderr that a file was written."""
        self.note(f"wrote {path}")

    def note(self, text: str) -> None:
        """A line on stderr, unless ``-q``; that of an interruption goes to the progress, too."""
        if text.startswith("interrupted") and (lines := progress_lines()) is not None:
            lines.interrupted = True
        if not self.quiet:
            print(printable(text), file=sys.stderr)

    def detail(self, text: str) -> None:
        """A line on stderr with ``-v``."""
        if self.verbose:
            self.note(text)

    @contextmanager
    def noted(self, kind: type[Warning]) -> Iterator[None]:
        """Turn warnings of this kind into notes, after the progress line; before an error too."""
        caught: list[warnings.WarningMessage] = []
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", kind)
                yield
        finally:
            for each in caught:
                if issubclass(each.category, kind):
                    self.note(f"warning: {each.message}")
                else:
                    warnings.showwarning(each.message, each.category, each.filename, each.lineno)

    def print_result(
        self,
        result: Result,
        *,
        report: Path | None = None,
        trace: Path | None = None,
        graph: Graph | None = None,
        table: Callable[[], Any] | None = None,
    ) -> None:
        """Print a plan and write the files that were named."""
        from placewright.planning.candidates import Status
        from placewright.planning.wings import unit_of
        from placewright.report.text import amount

        if result.status is Status.INTERRUPTED:
            self.note("interrupted: this is the best plan so far")
        if result.compile_s > 1.0:
            self.note(f"compiled kernels for {result.compile_s:.0f} s: once after an installation")
        self.show(result.as_json, table or (lambda: repr(result)))
        if self.output is not None:
            self.kept(result.save(self.output))
        self.keep_pictures(result, report=report, trace=trace, graph=graph)
        unit = unit_of(result.problem)
        for name, value in result.bound_names.items():
            self.detail(f"bound {name}: {amount(value, unit)}")

    def keep_pictures(
        self,
        result: Result,
        *,
        report: Path | None,
        trace: Path | None,
        graph: Graph | None = None,
        measurement: Measurement | None = None,
        run: Timeline | None = None,
    ) -> None:
        """Write the page and the trace, where they were named."""
        if report is not None:
            self.kept(result.report(report, measurement, graph, run))
        if trace is not None:
            self.kept(result.trace(trace, measurement))

    def meter(self, title: str, names: Names = SEARCH, unit: str = "s") -> ConsoleMeter:
        """A progress display with this title, to be used in a ``with`` statement."""
        return ConsoleMeter(
            title, visible=not self.quiet and sys.stderr.isatty(), names=names, unit=unit
        )


def document(data: Any, style: str) -> str:
    """`data` as JSON or YAML text; infinities and NaN become null."""
    if style == "yaml":
        import yaml

        text: str = yaml.safe_dump(_plain(data), sort_keys=False, allow_unicode=True, width=100)
        return text
    return json.dumps(_plain(data), indent=2, allow_nan=False) + "\n"


def write(path: Path, text: str) -> Path:
    """Write text; a folder that is not there is an `InputError`."""
    from placewright.io.stored import write_file

    return write_file(path, text)


def _plain(data: Any) -> Any:
    """Only what JSON knows: numpy scalars as numbers, infinities as null."""
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, str):
        return str(data)
    if hasattr(data, "tolist"):
        return _plain(data.tolist())
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def leave_stdout() -> None:
    """It takes no more: keep the interpreter from complaining of that at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_table(table: Any) -> None:
    """Rich tables get colours in a terminal; plain text goes out as it is."""
    if isinstance(table, str):
        print(printable(table))
        return
    from rich.console import Console

    class Terminal(Console):
        """Raises where the reader has left, as other output does."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    Terminal(highlight=False).print(table)


PROGRESS = "PLACEWRIGHT_PROGRESS"
"""Environment variable: a file to which this command appends its progress as JSON lines."""

PROGRESS_S, RARELY_S, LONG = 0.25, 5.0, 500
"""Seconds between two lines about one search: a `LONG`-th of its time so far, within these limits.
What is newer is written at its end."""

REPEATED_BYTES = 8192
"""Of steps, behind which what the command is doing is written again: readers look at the end."""


@cache
def progress_lines() -> ProgressLines | None:
    """Progress for the program that started this command, ``None`` where it asks for none.

    The variable is removed: commands that this one starts are not the one that is followed.
    """
    path = os.environ.pop(PROGRESS, "")
    if not path:
        return None
    lines = ProgressLines(path)
    follow_run(lines)
    return lines


def follow_run(lines: ProgressLines) -> None:
    """Write steps and events of runs too: step time, loss, plan; drift, migration, fault."""
    import logging

    class Lines(logging.Handler):
        """One line per record."""

        def emit(self, record: logging.LogRecord) -> None:
            """Write its fields."""
            lines.write(**record.fields)  # type: ignore[attr-defined]

    logger = logging.getLogger("placewright.run")  # `placewright.adapt.timeline`, not imported yet
    logger.addHandler(Lines())
    logger.setLevel(logging.INFO)


class ProgressLines:
    """A file of JSON lines that grows while a command works.

    It is a file and not a pipe, so that the reader may stop and start again in between. It stays
    open: a reader that has given this command up puts another file in its place.

    `interrupted`: whether Ctrl-C has ended the work early, and what there was by then is kept.
    """

    interrupted = False

    def __init__(self, path: str) -> None:
        from placewright.io.stored import behind_links

        self._file: int | None = None
        self._title, self._behind = "", 0
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # of a pipe: no waiting
            behind_links(Path(path))  # none of another user's
            self._file = os.open(path, flags, 0o600)
        self.write(pid=os.getpid())

    def write(self, **line: Any) -> None:
        """Append a line; a full disk must not end the work itself."""
        text = json.dumps(_plain(line), allow_nan=False) + "\n"
        self._behind += len(text)
        if "title" in line:
            self._title, self._behind = text, 0
        elif self._behind > REPEATED_BYTES:
            text, self._behind = text + self._title, 0
        if self._file is not None:
            with suppress(OSError):
                os.write(self._file, text.encode())

    def end(self, left: SystemExit) -> None:
        """Append the exit code, and the parts of the error that it stands for."""
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        error = left.__context__
        parts = error.parts if isinstance(error, PlacewrightError) else None
        self.write(pid=os.getpid(), exit_code=code, error=parts, interrupted=self.interrupted)


class ConsoleMeter:
    """One line on stderr that keeps itself up to date; `placewright.planning.contract.Progress`.

    Nothing is printed where stderr is no terminal. The line disappears at the end. The same goes
    to `progress_lines`, where another program follows this command.

    Parameters
    ----------
    names
        Labels of the value, of the bound and of the gap between them; an empty one is hidden.
    """

    def __init__(
        self, title: str, *, visible: bool, names: Names = SEARCH, unit: str = "s"
    ) -> None:
        self._title, self._visible, self._names = title, visible, names
        self._unit = unit
        self._what, self._value, self._bound = "", math.inf, 0.0
        self._start = time.perf_counter()
        self._live: Any = None
        self._lines, self._written_s = progress_lines(), -math.inf

    def __enter__(self) -> Self:
        self._report()
        if self._visible:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False)
            self._live = Live(
                get_renderable=self._line, console=console, transient=True, refresh_per_second=8
            )
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._report(at_once=True)

    def __call__(self, *, what: str, value: float, bound: float, elapsed_s: float) -> None:
        """Remember how far the search is; the line is redrawn by a thread of its own."""
        self._what, self._value, self._bound = what, value, bound
        self._report()

    def step(self, what: str) -> None:
        """Name the current step of something that has no value."""
        self._what = what
        self._report()

    def _report(self, at_once: bool = False) -> None:
        """A line for the program that follows this command, not more often than it can read."""
        now_s = time.perf_counter() - self._start
        pause_s = min(RARELY_S, max(PROGRESS_S, now_s / LONG))
        if self._lines is None or (now_s < self._written_s + pause_s and not at_once):
            return
        self._written_s = now_s
        self._lines.write(
            title=self._title,
            names=self._names,
            what=self._what,
            value=self._value,
            bound=self._bound or None,
            gap=self._gap() if self._names[2] else None,
            unit=self._unit,
            elapsed_s=round(now_s, 3),
        )

    def _line(self) -> Any:
        from rich.spinner import Spinner
        from rich.text import Text

        elapsed_s = time.perf_counter() - self._start
        if elapsed_s < VISIBLE_AFTER_S:
            return Text("")
        parts = [self._title, f"{elapsed_s:.1f} s", *self._numbers()]
        line = Text(printable("  ".join(parts)), no_wrap=True, overflow="ellipsis")
        return Spinner("dots", text=line)

    def _gap(self) -> float:
        """The larger one of value and bound over the other: right for maximised values, too."""
        from placewright.planning.result import relative_gap

        return relative_gap(max(self._value, self._bound), min(self._value, self._bound))

    def _numbers(self) -> list[str]:
        from placewright.report.text import amount, percent

        numbers = []
        value, bound, between = self._names
        if math.isfinite(self._value):
            numbers.append(f"{value} {amount(self._value, self._unit)}")
        if 0 < self._bound < math.inf:
            numbers.append(f"{bound} {amount(self._bound, self._unit)}")
            gap = self._gap()
            known = bool(between) and math.isfinite(gap)
            numbers += [f"{between} {percent(gap)}"] if known else []
        return numbers + ([self._what] if self._what else [])


SHARED: Mapping[str, Any] = {
    "on": options.OnOption,
    "plan": options.OptionalPlan,
    "batch": options.BatchOption,
    "check": options.CheckOption,
    "engine": options.EngineOption,
    "host": options.HostOption,
    "port": options.PortOption,
    "allow_host": options.AllowHostOption,
    "planner": options.PlannerOption,
    "time_limit": options.TimeLimitOption,
    "seed": options.SeedOption,
    "report": options.ReportOption,
    "trace": options.TraceOption,
    "format": options.FormatOption,
    "output": options.OutputOption,
    "quiet": options.QuietOption,
    "verbose": options.VerboseOption,
}
"""Options that a verb gets by naming a parameter so, without an annotation for typer."""

BESIDE_PLAN: Mapping[str, Any] = {
    "planner": options.OptionalPlannerOption,
    "time_limit": options.OptionalTimeLimitOption,
}
"""In place of those in `SHARED` where the default is ``None``: a plan may be given instead."""

COMMON: Mapping[str, Any] = {"format": "table", "output": None, "quiet": False, "verbose": 0}
"""Parameters of every command, with their defaults: the fields of `Console`."""


def console_command(verb: Callable[..., None], help_text: str = "") -> Callable[..., None]:
    """`verb` as a command: its first parameter, the console, is made of the common options.

    A verb that names one of them itself only changes its default.
    """
    own = _parameters(verb)
    passed = [p.name for p in own if p.name not in COMMON]

    def command(**given: Any) -> None:
        verb(_console(given), **{name: given[name] for name in passed})

    return _with_signature(command, own, help_text or verb.__doc__ or "")


def source_command(
    verb: Callable[..., None], load: Callable[..., Any], help_text: str
) -> Callable[..., None]:
    """`verb` as a command that also takes the parameters of `load`, which is its second one."""
    source, own = _parameters(load), _parameters(verb, skip=2)

    def command(**given: Any) -> None:
        console = _console(given)
        chosen = {p.name: given[p.name] for p in source}
        loaded = partial(load, console, **chosen)
        verb(console, loaded, **{p.name: given[p.name] for p in own})

    return _with_signature(command, [*source, *own], help_text)


def _console(given: Mapping[str, Any]) -> Console:
    return Console(**{name: given[name] for name in COMMON})


def _with_signature(
    command: Callable[..., None], parameters: Sequence[Parameter], help_text: str
) -> Callable[..., None]:
    """Give `command` the signature and the docstring that typer reads."""
    named = {p.name for p in parameters}
    common = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=SHARED[name])
        for name, default in COMMON.items()
        if name not in named
    ]
    every = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*parameters, *common)]
    command.__signature__ = Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    command.__doc__ = flowing(help_text)
    return command


def flowing(help_text: str) -> str:
    """Each paragraph on one line: typer wraps lines, and keeps the ends of those that it gets."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(help_text))


def _parameters(function: Callable[..., Any], skip: int = 1) -> list[Parameter]:
    """Those after the first `skip`, their annotations evaluated; `SHARED` ones by name."""
    found = list(signature(function).parameters.values())[skip:]
    return [p.replace(annotation=_annotation(function, p)) for p in found]


def _annotation(function: Callable[..., Any], parameter: Parameter) -> Any:
    written = parameter.annotation
    if isinstance(written, str):  # as `from __future__ import annotations` leaves it
        written = eval(written, function.__globals__)
    if hasattr(written, "__metadata__"):
        return written
    if parameter.default is None and parameter.name in BESIDE_PLAN:
        return BESIDE_PLAN[parameter.name]
    return SHARED.get(parameter.name, written)
