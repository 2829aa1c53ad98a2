"""How a verb speaks: data on stdout in the format asked for, everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewright.cli.options import Format
from placewright.cli.progress import Meter
from placewright.planning.monitor import SEARCH, Names


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
        """Print the table or the data; only what is asked for is made."""
        if self.format == "table":
            _print_table(table())
        else:
            sys.stdout.write(document(data(), self.format))

    def keep(self, data: Callable[[], Any]) -> None:
        """Write the document to ``-o FILE``, if that was given."""
        if self.output is not None:
            style = "yaml" if self.output.suffix in (".yaml", ".yml") else "json"
            self.kept(write(self.output, document(data(), style)))

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
        """Warnings of this kind become notes, once a progress line that was shown is gone."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", kind)
            yield
        for told in caught:
            if issubclass(told.category, kind):
                self.note(f"warning: {told.message}")
            else:
                warnings.showwarning(told.message, told.category, told.filename, told.lineno)

    def meter(self, title: str, names: Names = SEARCH) -> Meter:
        """A progress display with this title, to be used in a ``with`` statement."""
        return Meter(title, shown=not self.quiet and sys.stderr.isatty(), names=names)


def document(data: Any, style: str) -> str:
    """`data` as JSON or YAML text; numbers that JSON cannot say become null."""
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
