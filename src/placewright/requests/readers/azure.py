"""Arrival times of the Azure LLM inference traces.

Patel et al., Splitwise, ISCA 2024; CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import csv
from datetime import datetime
from io import StringIO
from pathlib import Path

import numpy as np

from placewright.errors import InputError
from placewright.io.boundary import read_text
from placewright.numerics.arrays import FloatArray


def azure_arrivals(path: str | Path) -> FloatArray:
    """Seconds from the first request, in order.

    Raises `InputError`, which names the file and the line that cannot be read.
    """
    reader = csv.DictReader(StringIO(read_text(path)))
    if "TIMESTAMP" not in (reader.fieldnames or ()):
        raise InputError("has no column TIMESTAMP", where=str(path))
    times = []
    for number, row in enumerate(reader, start=2):
        try:  # seven digits of a second; datetime takes six
            times.append(datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp())
        except (TypeError, ValueError):
            by = f"got {row['TIMESTAMP']!r}"
            raise InputError("is no time", where=f"{path}: line {number}", by=by) from None
    if not times:
        raise InputError("holds no requests", where=str(path))
    return np.sort(np.array(times)) - min(times)
