"""Measured arrival times in CSV files, such as the Azure LLM inference traces.

Patel et al., Splitwise, ISCA 2024: the columns TIMESTAMP, ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

import numpy as np

from placewright.errors import InputError
from placewright.io.boundary import csv_rows
from placewright.numerics.arrays import FloatArray

TIMES = "TIMESTAMP"


def read_arrivals(path: str | Path) -> FloatArray:
    """Seconds from the first request, in order: of the column TIMESTAMP, or else of the first one.

    Times are dates as in ISO 8601, or seconds.
    Raises `InputError`, which names the file and the line that cannot be read.
    """
    lines = [(k, row) for k, row in enumerate(csv_rows(path), 1) if row]
    head = lines[0][1] if lines else []
    column = head.index(TIMES) if TIMES in head else 0
    if head and _time(head, column) is None:
        del lines[0]
    times = []
    for number, row in lines:
        time_s = _time(row, column)
        if time_s is None:
            by = f"got {','.join(row)!r:.100}"
            raise InputError("has no time", where=f"{path}: line {number}", by=by)
        times.append(time_s)
    if not times:
        raise InputError("holds no requests", where=str(path))
    return np.sort(np.array(times)) - min(times)


def _time(row: list[str], column: int) -> float | None:
    written = row[column] if column < len(row) else ""
    try:
        seconds = float(written)
    except ValueError:
        try:  # seven digits of a second; datetime takes six
            return datetime.fromisoformat(written[:26]).timestamp()
        except ValueError:
            return None
    return seconds if math.isfinite(seconds) else None
