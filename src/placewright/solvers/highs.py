"""HiGHS, for who builds its programs row by row."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from placewright.errors import MissingDependencyError


def highs() -> Any:
    """The package, or an error that says how to get it."""
    try:
        return import_module("highspy")
    except ImportError:
        raise MissingDependencyError("highspy", extra="exact", purpose="a linear program") from None
