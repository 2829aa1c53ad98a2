"""Keep the rows of a long benchmark in a file, so that it can be run in calls of a few minutes.

A benchmark with ``--out FILE --minutes M`` does not compute rows again that FILE holds, begins none
after M minutes, and says how many are left; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class KeptRows:
    """Rows by key: those of a file, and those computed now, which the file gets, a line each."""

    def __init__(self, file: Path | None, minutes: float) -> None:
        self.file, self.end_s = file, time.monotonic() + 60 * minutes
        self.known: dict[str, Any] = {}
        self.left = 0
        if file is not None and file.exists():
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            self.known = {row["key"]: row["row"] for row in rows}

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """The row of a key; ``None`` where it is not known and no time is left to compute it."""
        if key not in self.known:
            if time.monotonic() > self.end_s:
                self.left += 1
                return None
            self.known[key] = compute()
            if self.file is not None:
                with self.file.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"key": key, "row": self.known[key]}) + "\n")
        return self.known[key]

    def print_left(self) -> None:
        """How many rows another call has to compute."""
        if self.left:
            print(f"{self.left} rows are left: run the same command again.")


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--out`` and ``--minutes``."""
    parser.add_argument("--out", type=Path, help="keep rows here, and take them from here")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no row after so many")
