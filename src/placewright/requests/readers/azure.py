"""Arrival times of the Azure LLM inference traces.

Patel et al., Splitwise, ISCA 2024; CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np

from placewright.errors import InputError
from placewright.io.boundary import csv_rows
from placewright.numerics.arrays import FloatArray


def azure_arrivals(path: str | Path) -> FloatArray:
    """Seconds from the first request, in order.

    Raises `InputError`, which names the file and the line that cannot be read.
    """
    rows = csv_rows(path)
    header = next(rows, [])
    if "TIMESTAMP" not in header:
        raise InputError("has no column TIMESTAMP", where=str(path))
    column = header.index("TIMESTAMP")
    times = []
    for number, row in enumerate(filter(None, rows), start=2):
        try:  # seven digits of a second; datetime takes six
            times.append(datetime.fromisoformat(row[column][:26]).timestamp())
        except (IndexError, ValueError):
            by = f"got {row[column : column + 1]}"
            raise InputError("is no time", where=f"{path}: line {number}", by=by) from None
    if not times:
        raise InputError("holds no requests", where=str(path))
    return np.sort(np.array(times)) - min(times)
