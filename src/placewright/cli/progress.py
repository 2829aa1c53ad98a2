"""The progress line: what is being tried, best value, bound, gap, elapsed time."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any, Self

from placewright.planning.monitor import SEARCH, Names

SHOWN_AFTER_S = 0.3
"""Whatever ends sooner shows nothing."""


class Meter:
    """One line on stderr that keeps itself up to date; `placewright.planning.contract.Progress`.

    Nothing is shown where stderr is no terminal. The line disappears at the end.

    Parameters
    ----------
    names
        What the value, the lower bound and the gap between them are called; what has no name is
        not shown.
    """

    def __init__(self, title: str, *, shown: bool, names: Names = SEARCH) -> None:
        self._title, self._shown, self._names = title, shown, names
        self._what, self._value, self._bound = "", math.inf, 0.0
        self._start = time.perf_counter()
        self._live: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False)
            self._live = Live(
                get_renderable=self._line, console=console, transient=True, refresh_per_second=8
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        if elapsed_s < SHOWN_AFTER_S:
            return Text("")
        parts = [self._title, f"{elapsed_s:.1f} s", *self._numbers()]
        line = Text("  ".join(parts), no_wrap=True, overflow="ellipsis")
        return Spinner("dots", text=line)

    def _numbers(self) -> list[str]:
        from placewright.planning.result import relative_gap
        from placewright.report.text import percent, seconds

        numbers = []
        value, bound, between = self._names
        if math.isfinite(self._value):
            numbers.append(f"{value} {seconds(self._value)}")
        if self._bound > 0:
            numbers.append(f"{bound} {seconds(self._bound)}")
            gap = relative_gap(self._value, self._bound)
            shown = bool(between) and math.isfinite(gap)
            numbers += [f"{between} {percent(gap)}"] if shown else []
        return numbers + ([self._what] if self._what else [])
