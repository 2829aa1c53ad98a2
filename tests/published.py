"""Paths of the published instances."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def published(path: str) -> Path:
    """The file under ``$PLACEWRIGHT_DATA`` or ``../shared/data``; skips the test without it."""
    folder = os.environ.get("PLACEWRIGHT_DATA")
    found = (Path(folder) if folder else ROOT.parent / "shared" / "data") / path
    if not found.exists():
        pytest.skip(f"published data {path} is not here; set PLACEWRIGHT_DATA")
    return found
