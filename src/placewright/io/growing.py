"""Files that grow while they are read: logs, and JSON lines."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def end_of(path: Path, most_bytes: int | None = None) -> bytes:
    """The last bytes of a file, or all of them; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            if most_bytes is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            return file.read()
    except OSError:
        return b""


def json_lines(data: bytes) -> list[dict[str, Any]]:
    """Objects, one a line; a line that was cut off, or is not written out yet, is left out."""
    found: list[Any] = []
    for line in data.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]
