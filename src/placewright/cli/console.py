"""The console of a verb: data on stdout in the chosen format, progress and notes on stderr."""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from placewright.cli.options import Format
from placewright.planning.monitor import SEARCH, Names

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

    format: Format = "table"
    output: Path | None = None
    quiet: bool = False
    verbose: int = 0

    def show(self, data: Callable[[], Any], table: Callable[[], Any]) -> None:
        """Print the table or the data; the other one is not computed."""
        if self.format == "table":
            _print_table(table())
        else:
            sys.stdout.write(document(data(), self.format))

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
        """A line on stderr, unless ``-q``."""
        if not self.quiet:
            print(text, file=sys.stderr)

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

    def meter(self, title: str, names: Names = SEARCH, unit: str = "s") -> Meter:
        """A progress display with this title, to be used in a ``with`` statement."""
        return Meter(title, visible=not self.quiet and sys.stderr.isatty(), names=names, unit=unit)


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


def _print_table(table: Any) -> None:
    """Rich tables get colours in a terminal; plain text goes out as it is."""
    if isinstance(table, str):
        print(table)
        return
    from rich.console import Console

    Console(highlight=False).print(table)


class Meter:
    """One line on stderr that keeps itself up to date; `placewright.planning.contract.Progress`.

    Nothing is printed where stderr is no terminal. The line disappears at the end.

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

    def __enter__(self) -> Self:
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

    def __call__(self, *, what: str, value: float, bound: float, elapsed_s: float) -> None:
        """Remember how far the search is; the line is redrawn by a thread of its own."""
        self._what, self._value, self._bound = what, value, bound

    def step(self, what: str) -> None:
        """Name the current step of something that has no value."""
        self._what = what

    def _line(self) -> Any:
        from rich.spinner import Spinner
        from rich.text import Text

        elapsed_s = time.perf_counter() - self._start
        if elapsed_s < VISIBLE_AFTER_S:
            return Text("")
        parts = [self._title, f"{elapsed_s:.1f} s", *self._numbers()]
        line = Text("  ".join(parts), no_wrap=True, overflow="ellipsis")
        return Spinner("dots", text=line)

    def _numbers(self) -> list[str]:
        from placewright.planning.result import relative_gap
        from placewright.report.text import amount, percent

        numbers = []
        value, bound, between = self._names
        if math.isfinite(self._value):
            numbers.append(f"{value} {amount(self._value, self._unit)}")
        if 0 < self._bound < math.inf:
            numbers.append(f"{bound} {amount(self._bound, self._unit)}")
            gap = relative_gap(self._value, self._bound)
            known = bool(between) and math.isfinite(gap)
            numbers += [f"{between} {percent(gap)}"] if known else []
        return numbers + ([self._what] if self._what else [])
