"""What has ended is handed over, whatever ended the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from placewright.cli.console import Console
from placewright.errors import PlacewrightError


class Ending:
    """Around a run: Ctrl-C and errors wait, where something has ended, until that is shown.

    Parameters
    ----------
    done
        What has ended, growing.
    told
        How far the run is, in words.
    """

    def __init__(self, console: Console, done: Sequence[object], told: Callable[[], str]) -> None:
        self._face, self._done, self._told = console, done, told
        self._error: PlacewrightError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not self._done or not isinstance(error, KeyboardInterrupt | PlacewrightError):
            return False
        if isinstance(error, PlacewrightError):
            self._error = error
        else:
            self._face.note(f"interrupted after {self._told()}")
        return True

    def finish(self) -> None:
        """Once all is shown: raise what went wrong, if anything did."""
        if self._error is not None:
            raise self._error
